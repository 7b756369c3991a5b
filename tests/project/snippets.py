#!/usr/bin/env python3
"""Tests the code blocks of README.md, CONTRIBUTING.md and docs/**/*.md.

  snippets.py generate plan|torch OUTPUT   write a C++ file with all ```cpp blocks, each in its own namespace
  snippets.py check BUILD                  check the blocks of all other languages, run the commands of `penstock`, and compare the
                                           options of those within the text with the help
  snippets.py python                       run the ```python blocks; exits with 77 if this Python lacks torch or penstock

The names that a page treats as given are declared in tests/project/snippets: `given_plan.h` or `given_torch.h` for all pages and
`<page>.h` for one page. `<page>.py` does the same for Python, and `<page>_check.py` looks at the results. What cannot run in a test is
listed in snippets/exempt.py.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GIVEN = ROOT / "tests/project/snippets"
PLAN_PAGES = {"docs/schedules.md", "docs/simulation.md"}  # these must compile without libtorch
sys.dont_write_bytecode = True
sys.path.insert(0, str(GIVEN))


@dataclass
class Block:
    page: str  # relative to the root
    line: int  # of the opening fence, from 1
    language: str  # empty if the fence has none
    lines: list

    def __str__(self):
        return f"{self.page}:{self.line}"

    @property
    def text(self):
        return "\n".join(self.lines) + "\n"

    @property
    def given(self):
        """The name of the page for the files in tests/project/snippets."""
        return Path(self.page).stem.lower().replace("-", "_")


def pages():
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks_of(page):
    """The fenced blocks of a page. A block in a list loses its indentation."""
    found, block = [], None
    for number, line in enumerate(page.read_text().splitlines(), 1):
        fence = re.match(r"( *)```(.*)$", line)
        if block is None and fence:
            indent = len(fence[1])
            block = Block(str(page.relative_to(ROOT)), number, fence[2].strip(), [])
        elif block is not None and fence:
            found.append(block)
            block = None
        elif block is not None:
            block.lines.append(line[indent:] if line[:indent].isspace() else line)
    if block:
        sys.exit(f"{block}: this block does not end")
    return found


def inline_commands(page):
    """The commands of `penstock` in the text of a page, as blocks of one line."""
    text = re.sub(r"(?ms)^ *```.*?^ *```$", lambda block: "\n" * block[0].count("\n"), page.read_text())
    for span in re.finditer(r"`(?:build/\w+/bin/)?(penstock [a-z][^`]*)`", text):
        line = text.count("\n", 0, span.start()) + 1
        yield Block(str(page.relative_to(ROOT)), line, "inline", [" ".join(span[1].split())])


def all_blocks():
    return [block for page in pages() for block in blocks_of(page)]


# C++


def is_function(line):
    """Whether the line at the left margin begins the definition of a function."""
    return re.match(r"(template|[\w:<>,&*]+ (?:[\w:<>,&*]+ )*[\w:]+\(.*\)( const)? \{$)", line) and not re.match(
        r"(else|for|if|switch|while|do|try|return)\b", line
    )


class Source:
    """A C++ file made of pieces of other files. Errors of the compiler name the piece's own file and line."""

    def __init__(self):
        self.includes, self.body = [], []

    def add(self, path, lines, first):
        self.body.append(f'#line {first} "{path}"')
        for line in lines:
            code = line.split("//")[0].strip()
            if code.startswith("#include"):
                if code not in self.includes:
                    self.includes.append(code)
                line = ""
            self.body.append("" if line.startswith("#pragma once") else line)

    def add_given(self, name):
        path = GIVEN / f"{name}.h"
        if path.exists():
            self.add(path, path.read_text().splitlines(), 1)

    def add_block(self, block):
        """Functions of the block go to a namespace, its statements to the body of a function."""
        code = [line.split("//")[0].rstrip() for line in block.lines]
        functions, at = set(), 0
        while at < len(code):
            if is_function(code[at]):
                end = next((i for i in range(at, len(code)) if code[i].startswith("}")), len(code) - 1)
                functions.update(range(at, end + 1))
                at = end
            at += 1
        path = ROOT / block.page
        self.body.append(f"namespace line_{block.line} {{")
        if functions:
            self.add(path, [line if i in functions else "" for i, line in enumerate(block.lines)], block.line + 1)
        self.body.append("void statements() {")
        self.add(path, ["" if i in functions else line for i, line in enumerate(block.lines)], block.line + 1)
        self.body.append("}\n}")

    def text(self):
        return "\n".join(["// Generated by tests/project/snippets.py.", *self.includes, *self.body, ""])


def generate(side, output):
    blocks = [block for block in all_blocks() if block.language == "cpp" and (block.page in PLAN_PAGES) == (side == "plan")]
    placeholders = [f"{block}: replace `…` by code that compiles" for block in blocks if "…" in re.sub("//.*", "", block.text)]
    if placeholders:
        sys.exit("\n".join(placeholders))
    source = Source()
    source.add_given(f"given_{side}")
    for page in dict.fromkeys(block.page for block in blocks):
        own = [block for block in blocks if block.page == page]
        source.body.append(f"namespace page_{own[0].given} {{")
        source.add_given(own[0].given)
        for block in own:
            source.add_block(block)
        source.body.append("}")
    # An edit that moves no snippet compiles nothing again.
    if not os.path.exists(output) or Path(output).read_text() != source.text():
        Path(output).write_text(source.text())


# Shell, output and data


def commands_of(block):
    """The commands of a shell block, one per line, without comments. The tool of any build is called `penstock`."""
    text = re.sub(r"\\\n\s*", "", block.text)
    lines = [re.sub(r"(^|\s)#.*", "", line).rstrip() for line in text.splitlines()]
    return [re.sub(r"^build/\w+/bin/penstock ", "penstock ", line) for line in lines if line]


class Checker:
    def __init__(self, build):
        import exempt  # after `sys.path` was set

        self.build, self.exempt = Path(build), exempt
        self.problems, self.used, self.outputs = [], set(), {}
        self.checked, self.helps, self.results = 0, {}, {}
        self.torch = (self.build / "bin/penstock-torch").exists()

    def problem(self, block, text):
        self.problems.append(f"{block}: {text}")

    def run(self, command, directory):
        environment = {**os.environ, "PATH": f"{self.build / 'bin'}:{os.environ['PATH']}", "NO_COLOR": "1"}
        return subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command], cwd=directory, env=environment, capture_output=True, text=True, timeout=120
        )

    def help_of(self, name, directory):
        if name not in self.helps:
            self.helps[name] = self.run(f"penstock {name} --help", directory)
        return self.helps[name]

    def check_options(self, block, command, words, directory):
        """For commands that need libtorch or files: the command and its options exist."""
        if "--" in words:  # `penstock run … -- PROGRAM`
            inner = words[words.index("--") + 1 :]
            words = words[: words.index("--")]
            if inner and Path(inner[0]).name == "penstock":
                self.check_options(block, command, inner, directory)
        shown = self.help_of(words[1], directory)
        if shown.returncode != 0:
            return self.problem(block, f"`{command}`: {shown.stderr.strip()}")
        known = set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", shown.stdout))
        for word in words[2:]:
            option = word.strip("[]").split("=")[0]
            if re.match(r"--?[a-z]", option) and option not in known:
                self.problem(block, f"`{command}`: `penstock {words[1]} --help` does not describe {option}")

    def check_penstock(self, block, command, directory):
        words = shlex.split(command)
        if words[1] in self.exempt.TORCH_COMMANDS:
            if self.torch:
                self.check_options(block, command, words, directory)
            return
        arguments = " ".join(words[1:])  # pages show the same commands
        if arguments not in self.results:
            self.results[arguments] = self.run(command, directory)
        result = self.results[arguments]
        if result.returncode != 0:
            self.problem(block, f"`{command}` exits with {result.returncode}: {result.stderr.strip()}")
        self.outputs.setdefault(block.page, []).append(result.stdout.strip())

    def check_inline(self, block, directory):
        words = block.lines[0].split()
        if self.torch or words[1] not in self.exempt.TORCH_COMMANDS:
            self.check_options(block, block.lines[0], words, directory)

    def check_shell(self, block, directory):
        syntax = subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True)
        if syntax.returncode != 0:
            self.problem(block, syntax.stderr.strip())
        if self.is_exempt(block):
            return
        for command in commands_of(block):
            if any(re.match(pattern, command) for pattern in self.exempt.COMMANDS):
                continue
            if command.startswith("penstock "):
                self.check_penstock(block, command, directory)
            elif command.startswith("./dev "):
                self.check_dev(block, command)
            else:
                self.problem(block, f"`{command}` is neither run nor listed in tests/project/snippets/exempt.py")

    def check_dev(self, block, command):
        if "dev" not in self.helps:
            self.helps["dev"] = subprocess.run([ROOT / "dev", "help"], capture_output=True, text=True).stdout
        if not re.search(rf"^  {re.escape(command.split()[1])}\b", self.helps["dev"], re.MULTILINE):
            self.problem(block, f"`./dev help` does not describe `{command}`")

    def is_exempt(self, block):
        rows = [(page, start) for page, start in self.exempt.BLOCKS if page == block.page]
        matching = {(page, start) for page, start in rows if any(line.startswith(start) for line in block.lines)}
        self.used |= matching
        return bool(matching)

    def check_output(self, block):
        """A block without a language is the output of a command of its page, or exempt."""
        if block.text.strip() not in self.outputs.get(block.page, []) and not self.is_exempt(block):
            self.problem(block, "no command of this page prints this block, and snippets/exempt.py does not list it")

    def check_data(self, block):
        try:
            if block.language == "json":
                json.loads(block.text)
            elif block.language == "toml":
                import tomllib

                tomllib.loads(block.text)
            elif block.language == "yaml":
                import yaml

                list(yaml.safe_load_all(block.text))
            elif block.language == "python":
                compile(block.text, str(block), "exec")
        except ImportError as missing:
            self.problem(block, f"not parsed: {missing}; install python3-yaml, and Python 3.11 for TOML")
        except Exception as error:  # each parser has its own
            self.problem(block, str(error))

    def check(self, block, directory):
        self.checked += 1
        if block.language in ("sh", "bash"):
            self.check_shell(block, directory)
        elif block.language in ("json", "toml", "yaml", "python"):
            self.check_data(block)
        elif block.language in ("", "text"):
            self.check_output(block)
        elif block.language != "cpp" and not self.is_exempt(block):
            self.problem(block, f"blocks of the language '{block.language}' are not tested")


def check(build):
    checker = Checker(build)
    with tempfile.TemporaryDirectory() as directory:
        os.symlink(ROOT / "examples", f"{directory}/examples")
        for command in checker.exempt.SETUP:
            checker.run(command, directory).check_returncode()
        # Commands first, so that their output is known.
        for block in sorted(all_blocks(), key=lambda block: block.language in ("", "text")):
            checker.check(block, directory)
        for block in (block for page in pages() for block in inline_commands(page)):
            checker.check_inline(block, directory)
    for unused in set(checker.exempt.BLOCKS) - checker.used:
        checker.problems.append(f"{unused[0]}: snippets/exempt.py lists a block that does not exist: {unused[1]}")
    print("\n".join(checker.problems) or f"{checker.checked} blocks are correct")
    return 1 if checker.problems else 0


# Python


def run_python():
    """Runs the Python blocks of each page as one program. tests/tools/train/readme_example.sh runs the model of the README."""
    python = os.environ.get("PENSTOCK_PYTHON") or sys.executable
    if subprocess.run([python, "-c", "import torch"], capture_output=True).returncode != 0:
        print("this Python lacks torch")
        return 77
    blocks = [block for block in all_blocks() if block.language == "python" and (block.page != "README.md" or "penstock" in block.text)]
    failed = left_out = 0
    penstock = subprocess.run([python, "-c", "import penstock"], capture_output=True).returncode == 0
    for page in dict.fromkeys(block.page for block in blocks):
        own = [block for block in blocks if block.page == page]
        if not penstock and any(re.search(r"^(from|import) penstock\b", block.text, re.MULTILINE) for block in own):
            print(f"{page}: left out: this Python lacks penstock")
            left_out = 77
            continue
        given, check = (GIVEN / f"{own[0].given}{end}" for end in (".py", "_check.py"))
        parts = [given.read_text() if given.exists() else "", *(block.text for block in own), check.read_text() if check.exists() else ""]
        program = "\n".join(parts)
        with tempfile.TemporaryDirectory() as directory:
            ranks = ["-m", "penstock", "run", "--ranks", "2", "--", python] if page == "README.md" else []  # its block is for several
            result = subprocess.run([python, *ranks, "-c", program], cwd=directory, capture_output=True, text=True)
        print(f"{page}: {'ok' if result.returncode == 0 else result.stderr}")
        failed |= result.returncode != 0
    return 1 if failed else left_out


def main(arguments):
    mode = arguments[0] if arguments else ""
    if mode == "generate" and len(arguments) == 3:
        return generate(*arguments[1:])
    if mode == "check" and len(arguments) == 2:
        return check(arguments[1])
    if mode == "python":
        return run_python()
    sys.exit(__doc__)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
