#!/usr/bin/env python3
"""Writes stubs of the functions of a library that the given objects do not define.

usage: make_stubs.py exports LIBRARY ERROR OUTPUT OBJECT...
       make_stubs.py imports:PREFIX LIBRARY ERROR OUTPUT OBJECT...

The functions are those that LIBRARY exports, or those that it imports and whose names are PREFIX and an upper-case
letter. A stub returns ERROR. With FAKE_CUDA_TRACE set, it also prints its name.
"""
import re
import subprocess
import sys


def symbols(file, kinds, *options):
    lines = subprocess.run(["nm", *options, file], check=True, capture_output=True, text=True).stdout.splitlines()
    fields = [line.split() for line in lines if len(line.split()) >= 2]
    return {words[-1].split("@")[0] for words in fields if words[-2] in kinds}


def wanted(which, library):
    if which == "exports":
        return {name for name in symbols(library, "TWi", "-D", "--defined-only") if name.isidentifier()}
    prefix = which.removeprefix("imports:")
    return {name for name in symbols(library, "U", "-D", "--undefined-only") if re.match(prefix + "[A-Z]", name)}


def main():
    which, library, error, output, *objects = sys.argv[1:]
    own = set().union(*(symbols(item, "TW", "--defined-only") for item in objects))
    with open(output, "w", encoding="utf-8") as file:
        file.write('#include <cstdio>\n#include <cstdlib>\n[[maybe_unused]] static int refuse(const char* name) {\n'
                   '  if (std::getenv("FAKE_CUDA_TRACE")) std::fprintf(stderr, "fake CUDA: %s is a stub\\n", name);\n'
                   f'  return {error};\n}}\nextern "C" {{\n')
        for name in sorted(wanted(which, library) - own):
            file.write(f'int {name}() {{ return refuse("{name}"); }}\n')
        file.write("}\n")


if __name__ == "__main__":
    main()
