"""Checks that every local link of the documentation site leads to a file, and its anchor to an element.

Usage: check_site.py SITE

Prints each href and src that leads nowhere and exits with 1 if there is one. MkDocs checks the links of its own pages; this also covers
Doxygen's pages, the playground and the links between them, except for anchors within Doxygen's pages.
"""

import functools
import html.parser
import re
import sys
import urllib.parse
from pathlib import Path


class Page(html.parser.HTMLParser):
    """Collects the links of a page and the anchors that links may lead to."""

    def __init__(self, text):
        super().__init__()
        self.links, self.anchors = set(), {"", "top"}  # browsers know these two
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.links.update(value for name, value in attributes if name in ("href", "src") and value)
        self.anchors.update(value for name, value in attributes if value and (name == "id" or (tag, name) == ("a", "name")))


@functools.lru_cache(maxsize=None)
def read(path):
    return Page(path.read_text(errors="replace"))


def broken_links(site):
    site = site.resolve()
    api = site / "api"
    for path in sorted(site.rglob("*.html")):
        for link in sorted(read(path).links):
            if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:|//", link):  # another host, or data: and the like
                continue
            name, _, anchor = link.partition("#")
            name = urllib.parse.unquote(name.split("?")[0])
            target = path if not name else site / name.lstrip("/") if name.startswith("/") else path.parent / name
            if target.is_dir():
                target = target / "index.html"
            if not target.is_file():
                yield f"{path.relative_to(site)}: {link}"
            elif path.is_relative_to(api) and target.resolve().is_relative_to(api):
                continue  # Doxygen checks its references, but lists friends and defaulted functions without a place of their own
            elif target.suffix == ".html" and urllib.parse.unquote(anchor) not in read(target.resolve()).anchors:
                yield f"{path.relative_to(site)}: {link} has no such anchor"


def main():
    broken = list(broken_links(Path(sys.argv[1])))
    for line in broken:
        print(line, file=sys.stderr)
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
