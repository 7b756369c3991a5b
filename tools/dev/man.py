"""Writes the manual pages of the tool from its help.

Usage: man.py TOOL DIRECTORY

Writes penstock.1 and one page per command, penstock-train.1 and so on. Commands of an executable that is not built are left out.
"""

import re
import subprocess
import sys
from pathlib import Path

# `  --ranks INT=1          number of ranks`; a long signature has its description on the next line.
ENTRY = re.compile(r"^  (\S(?:.*?\S)?)(?:\s{2,}(\S.*))?$")
COMMAND = re.compile(r"^  ([a-z]+)  +(.*)$", re.MULTILINE)


def help_of(tool, *words):
    """The help, or None if the command cannot run."""
    result = subprocess.run([tool, *words, "--help"], capture_output=True, text=True)
    return result.stdout if result.returncode == 0 else None


def roff(text):
    """Escapes text. Hyphens become minus signs, so that options can be searched and copied."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga")
    text = "".join(c if c.isascii() else f"\\[u{ord(c):04X}]" for c in text)
    return "\\&" + text if text.startswith(".") else text


def bold(text):
    return f"\\fB{roff(text)}\\fR"


def italic(text):
    return f"\\fI{roff(text)}\\fR"


def signature(text):
    """`-o,--output TEXT=x` with the names in bold and the value in italics."""
    if not text.startswith("-"):  # a positional argument
        name, _, rest = text.partition(" ")
        return italic(name) + (" " + roff(rest) if rest else "")
    names, _, value = text.partition(" ")
    result = ", ".join(bold(name) for name in names.split(","))
    return result + (" " + italic(value) if value else "")


def entries(lines):
    """The options or arguments in a section of the help, as pairs of signature and description."""
    found = []
    for line in lines:
        match = ENTRY.match(line)
        if match:
            found.append([match.group(1), match.group(2) or ""])
        elif line.strip():  # the description of a long signature
            found[-1][1] = (found[-1][1] + " " + line.strip()).strip()
    return found


def sections(text):
    """The parts of the help by title. The first lines, before any title, have the title ''."""
    result, title = {"": []}, ""
    for line in text.splitlines():
        if re.match(r"^[A-Z][a-z]+:$", line):
            title = line.removesuffix(":")
            result[title] = []
        else:
            result[title].append(line)
    return result


class Page:
    def __init__(self, name, summary, version):
        self.lines = [f'.TH {roff(name.upper())} 1 "" "{roff(version)}" "Penstock"', ".SH NAME", f"{roff(name)} \\- {roff(summary)}"]

    def section(self, title):
        self.lines.append(f".SH {title}")

    def text(self, text):
        self.lines.append(roff(text))

    def item(self, head, text):
        self.lines += [".TP", head, roff(text)]

    def example(self, text):
        self.lines += [".nf", roff(text), ".fi"]

    def write(self, path):
        path.write_text("\n".join(self.lines) + "\n")


def command_page(name, text, version):
    parts = sections(text)
    summary, usage = parts[""][0], next(line for line in parts[""] if line.startswith("Usage: "))
    page = Page(f"penstock-{name}", summary, version)
    page.section("SYNOPSIS")
    page.lines.append(bold(f"penstock {name}") + roff(usage.removeprefix(f"Usage: penstock {name}")))
    for title, heading in (("Positionals", "ARGUMENTS"), ("Options", "OPTIONS")):
        found = entries(parts.get(title, []))
        if found:
            page.section(heading)
        for head, description in found:
            page.item(signature(head), description)
    page.section("EXAMPLE")
    page.example("\n".join(line.strip() for line in parts["Example"]).strip())
    page.section("SEE ALSO")
    page.lines.append(bold("penstock") + "(1)")
    return page


def overview_page(text, commands, version):
    before, after = text.split("Commands:\n")
    page = Page("penstock", before.splitlines()[0].rstrip("."), version)
    page.section("SYNOPSIS")
    page.lines.append(bold("penstock") + " " + italic("COMMAND") + roff(" [arguments]"))
    page.section("COMMANDS")
    for name, summary in commands:
        page.item(bold(f"penstock-{name}") + "(1)", summary)
    page.section("NOTES")
    for line in after.split("\n\n", 1)[1].strip().splitlines():
        page.text(line)
        page.lines.append(".br")
    page.lines.pop()
    return page


def main():
    tool, directory = sys.argv[1], Path(sys.argv[2])
    directory.mkdir(parents=True, exist_ok=True)
    version = subprocess.run([tool, "--version"], check=True, capture_output=True, text=True).stdout.strip()
    overview = help_of(tool)
    commands = []
    for name, summary in COMMAND.findall(overview):
        text = help_of(tool, name)
        if text is None:
            continue
        commands.append((name, summary))
        command_page(name, text, version).write(directory / f"penstock-{name}.1")
    overview_page(overview, commands, version).write(directory / "penstock.1")


if __name__ == "__main__":
    main()
