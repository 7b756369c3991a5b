#!/usr/bin/env python3
"""Runs the commands of the documents that need libtorch: those of `penstock`, `./dev python` and the examples that a page runs by
themselves. tests/tools/train/readme_example.sh runs those of the README.

  snippet_commands.py BUILD [PAGE…]

The commands of a page run in its order, in a copy of a directory that has the model and the data of the README and finished runs. Options
that a command does not give make it small. Exits with 77 if this Python lacks torch, numpy or safetensors.
"""

import functools
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import snippets

import exempt  # snippets.py has set its path

# Added to `penstock train` if the command does not give them.
SMALL = {"--steps": "2", "--sample": "0", "--eval-every": "0"}
SMALL_GPT = {"--layers": "4", "--width": "16", "--heads": "2", "--seq": "16", "--batch": "8"}
PREPARATION = """
penstock train --ranks 1 --data text.txt --checkpoint runs/gpt
penstock train model.pt2 --data data.safetensors --batch 16 --ranks 2 --checkpoint runs/mine
penstock train model.pt2 --data data.safetensors --batch 16 --lora 'layers.*' --checkpoint runs/lora
"""
# The README's model must not look at later tokens if it is to generate some.
CAUSAL = """
class CausalModel(MyModel):
    def forward(self, tokens):
        x = self.token(tokens) + self.position.weight
        for layer in self.layers:
            x = layer(x, torch.full((16, 16), float("-inf")).triu(1))
        return self.head(x)

MyModel = CausalModel
"""
FILES = """
open("text.txt", "w").write("To be, or not to be, that is the question.\\n" * 50)
ids = torch.arange(4000).remainder(50)
ids[::100] = 50256
ids.to(torch.uint16).numpy().tofile("tokens.bin")
safetensors.torch.save_file({"tokens": tokens[:8]}, "x.safetensors")
"""


def small(command):
    words = shlex.split(command)
    if words[1] != "train":
        return command
    model = any(word.endswith(".pt2") for word in words[2:])
    wanted = SMALL | ({"--batch": "16"} if model else SMALL_GPT)
    return " ".join([command, *(f"{name} {value}" for name, value in wanted.items() if name not in words)])


def is_run(command):
    return re.match(rf"penstock ({'|'.join(exempt.TORCH_COMMANDS)})\b|\./dev python |build/release/examples/", command)


@functools.cache
def torch_directory():
    find = "import os, torch; print(os.path.dirname(torch.__file__))"
    return subprocess.run([python_with_torch(), "-c", find], capture_output=True, text=True, check=True).stdout.strip()


def python_with_torch():
    return os.environ.get("PENSTOCK_PYTHON") or sys.executable


def run(command, directory, build):
    environment = {**os.environ, "PATH": f"{build / 'bin'}:{os.environ['PATH']}", "NO_COLOR": "1", "OMP_NUM_THREADS": "1"}
    if command.startswith("./dev "):
        environment["PENSTOCK_TORCH"] = torch_directory()
    result = subprocess.run(["bash", "-c", small(command)], cwd=directory, env=environment, capture_output=True, text=True)
    return "" if result.returncode == 0 else f"`{command}` exits with {result.returncode}: {result.stderr.strip()}"


def commands_of(page):
    """The commands of a page that need libtorch, with the blocks that contain them."""
    for block in snippets.blocks_of(page):
        name = str(page.relative_to(snippets.ROOT))
        listed = any(where == name and any(line.startswith(start) for line in block.lines) for where, start in exempt.BLOCKS)
        if block.language not in ("sh", "bash") or listed:
            continue
        for command in snippets.commands_of(block):
            if is_run(command):
                yield block, command


def prepare(directory, build, python):
    (directory / "build").mkdir()
    os.symlink(build, directory / "build/release")
    for name in ("dev", "examples"):
        os.symlink(snippets.ROOT / name, directory / name)
    section = snippets.ROOT / "README.md"
    model, export = (b.text for b in snippets.blocks_of(section) if b.language == "python" and "penstock" not in b.text)
    subprocess.run([python, "-c", "\n".join([model, CAUSAL, export, FILES])], cwd=directory, check=True)
    for command in PREPARATION.strip().splitlines():
        if problem := run(command, directory, build):
            sys.exit(problem)


def run_page(page, prepared, build, seen):
    problems = []
    with tempfile.TemporaryDirectory() as directory:
        copy = shutil.copytree(prepared, Path(directory) / "page", symlinks=True)
        for block, command in commands_of(page):
            if any(re.search(pattern, command) for pattern in exempt.NOT_RUN) or command in seen:
                continue
            if re.match("penstock (doctor|version)$", command):  # the same everywhere
                seen.add(command)
            new = re.search(r"^penstock train .*--checkpoint (\S+)", command)
            if new and "--resume" not in command:  # it starts a run
                shutil.rmtree(copy / new[1], ignore_errors=True)
            if problem := run(command, copy, build):
                problems.append(f"{block}: {problem}")
    return problems


def main(build, *only):
    python = python_with_torch()
    if subprocess.run([python, "-c", "import torch, numpy, safetensors"], capture_output=True).returncode != 0:
        print("this Python lacks torch, numpy or safetensors")
        return 77
    pages = [page for page in snippets.pages() if page.name != "README.md" and (not only or page.name in only) and any(commands_of(page))]
    commands = [command for page in pages for _, command in commands_of(page)]
    unused = [] if only else [p for p in exempt.NOT_RUN if not any(re.search(p, command) for command in commands)]
    problems = [f"snippets/exempt.py lists commands that do not exist: {pattern}" for pattern in unused]
    with tempfile.TemporaryDirectory() as prepared, ThreadPoolExecutor(2) as pool:
        prepare(Path(prepared), Path(build).resolve(), python)
        seen = set()
        for found in pool.map(lambda page: run_page(page, prepared, Path(build).resolve(), seen), pages):
            problems += found
    print("\n".join(problems) or f"{len(commands)} commands of {len(pages)} pages work")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
