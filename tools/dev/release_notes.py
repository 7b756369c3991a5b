"""Prints the section of CHANGELOG.md for a release, without its heading.

Usage: release_notes.py TAG [URL]

TAG is `v` and the version, such as v0.2.0. Fails if CMakeLists.txt has another version, or if CHANGELOG.md has no dated section with
entries for it. With URL, the address of the files of the release, relative links lead there.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def fail(message, hint):
    sys.exit(f"release_notes: error: {message}\nhint: {hint}")


def project_version():
    return re.search(r"^project\(penstock VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text(), re.MULTILINE).group(1)


def section_of(version):
    """Returns the lines below the heading of the version, or None if there is no such heading."""
    heading = re.compile(rf"## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d")
    lines = None
    for line in (ROOT / "CHANGELOG.md").read_text().splitlines():
        if line.startswith("## "):
            if lines is not None:
                break
            if heading.fullmatch(line):
                lines = []
        elif lines is not None:
            lines.append(line)
    return None if lines is None else "\n".join(lines).strip()


def with_links_to(url, text):
    def redirect(match):
        target = match.group(1)
        return f"]({url}/{'CHANGELOG.md' if target.startswith('#') else ''}{target})"

    return re.sub(r"\]\((?!\w+:)([^)\s]+)\)", redirect, text)


def main(tag, url=None):
    version = tag.removeprefix("v")
    if tag != f"v{project_version()}":
        fail(f"the tag {tag} does not match version {project_version()} of CMakeLists.txt", f"tag v{project_version()}, or change the version")
    text = section_of(version)
    if not text:
        fail(f"CHANGELOG.md has no entries for version {version}", f"rename the section [Unreleased] to: ## [{version}] - YYYY-MM-DD")
    print(with_links_to(url, text) if url else text)


if len(sys.argv) not in (2, 3):
    sys.exit(__doc__.strip())
main(*sys.argv[1:])
