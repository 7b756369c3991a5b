"""Assembles the playground into one HTML file: template, style, scripts, and the module as compressed base64.

usage: assemble.py MODULE.wasm OUTPUT.html
"""
import base64
import gzip
import pathlib
import re
import sys

# The order matters: a script uses only names of those before it until the page starts.
SCRIPTS = ["units.js", "state.js", "engine.js", "strips.js", "timeline.js", "pointer.js", "fields.js",
           "panel.js", "planner.js", "file.js", "app.js"]


def without_comments(script):
    """Removes the lines that contain only a comment."""
    return "\n".join(line for line in script.splitlines() if not line.lstrip().startswith("//"))


def main(module, output):
    folder = pathlib.Path(__file__).parent
    read = lambda name: (folder / name).read_text(encoding="utf-8")
    compressed = gzip.compress(pathlib.Path(module).read_bytes(), compresslevel=9, mtime=0)
    parts = {
        "style": read("page.css"),
        "worker": without_comments(read("worker.js")),
        "script": "\n".join(without_comments(read(name)) for name in SCRIPTS),
        "module": base64.b64encode(compressed).decode("ascii"),
    }
    for name in ("worker", "script"):
        if "</script" in parts[name]:
            sys.exit("a script contains a closing tag")
    page = re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], read("page.html"))
    pathlib.Path(output).write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
