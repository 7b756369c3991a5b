"""Writes unicode_compositions.cpp: the canonical decompositions and combining classes of Unicode.

Usage: python3 make_unicode_compositions.py FILE. Needs the package unicodedata2.
"""
import sys
import textwrap

import unicodedata2

HEADER = """\
// Canonical decompositions and combining classes in Unicode {version}. Written by make_unicode_compositions.py.
#include "train/text/unicode_compositions.h"

namespace penstock::train {{

"""
FOOTER = "}  // namespace penstock::train\n"


def decompositions():
    """CODE=FIRST,SECOND, or CODE=FIRST for one character; `!` if the parts are not composed again."""
    for code in range(0x110000):
        character = chr(code)
        parts = unicodedata2.decomposition(character).split()
        is_hangul = 0xac00 <= code <= 0xd7a3
        if not parts or parts[0].startswith("<") or is_hangul:
            continue
        again = unicodedata2.normalize("NFC", character) == character
        yield f"{code:x}={','.join(format(int(part, 16), 'x') for part in parts)}{'' if again else '!'}"


def classes():
    """FIRST-LAST=CLASS, without -LAST for one code point."""
    ranges = []
    for code in range(0x110000):
        number = unicodedata2.combining(chr(code))
        if ranges and ranges[-1][1] == code - 1 and ranges[-1][2] == number:
            ranges[-1][1] = code
        else:
            ranges.append([code, code, number])
    for first, last, number in ranges:
        if number:
            yield f"{first:x}{'' if first == last else f'-{last:x}'}={number:x}"


def literal(name, items):
    lines = textwrap.wrap(" ".join(items), 100)
    return f"const std::string_view {name} =\n" + "\n".join(f'    "{line} "' for line in lines) + ";\n\n"


def main():
    text = HEADER.format(version=unicodedata2.unidata_version)
    text += literal("kDecompositions", decompositions()) + literal("kCombiningClasses", classes())
    with open(sys.argv[1], "w") as out:
        out.write(text + FOOTER)


main()
