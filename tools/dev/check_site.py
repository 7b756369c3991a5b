"""Checks that every local link of the documentation site leads to a file.

Usage: check_site.py SITE

Prints each href and src without a file and exits with 1 if there is one. MkDocs checks the links of its own pages; this also covers
Doxygen's pages and the links between the two.
"""

import html.parser
import re
import sys
import urllib.parse
from pathlib import Path


class Links(html.parser.HTMLParser):
    """Collects the values of href and src."""

    def __init__(self, text):
        super().__init__()
        self.links = set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.links.update(value for name, value in attributes if name in ("href", "src") and value)


def broken_links(site):
    for page in sorted(site.rglob("*.html")):
        for link in sorted(Links(page.read_text(errors="replace")).links):
            if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:|//", link):  # another host, or data: and the like
                continue
            path = urllib.parse.unquote(re.split("[?#]", link)[0])
            target = site / path.lstrip("/") if path.startswith("/") else page.parent / path
            if path and not (target / "index.html" if target.is_dir() else target).is_file():
                yield f"{page.relative_to(site)}: {link}"


def main():
    broken = list(broken_links(Path(sys.argv[1])))
    for line in broken:
        print(line, file=sys.stderr)
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
