"""Reads cost files: TOML, in the format that docs/simulation.md describes and `penstock costs` writes."""

from __future__ import annotations

import dataclasses
import difflib
import math
import os
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from penstock.errors import ParseError, UsageError
from penstock.plan import CostFile, Costs, Layer, Link, StageCosts

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_UNITS = {"": 1, "b": 1, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12}
_UNITS |= {"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
_MOST_ENTRIES = 65_535
_DEFAULT = object()


class _Table:
    """A table of the file. Every key must be read."""

    def __init__(self, what: str, table: object) -> None:
        if not isinstance(table, dict):
            raise ParseError(f"{what} must be a table")
        self.what, self.table, self.known = what, table, list[str]()

    def get(self, key: str, default: object = _DEFAULT) -> Any:
        self.known.append(key)
        if key not in self.table and default is _DEFAULT:
            raise ParseError(f"{self.what} needs {key}")
        return self.table.get(key, default)

    def number(self, key: str, default: Any) -> Any:
        value = self.get(key, default)
        if value is default:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
            raise ParseError(f"{self.what}: {key} must be a non-negative number, not {value!r}")
        return float(value)

    def size(self, key: str, default: float) -> float:
        value = self.get(key, default)
        if not isinstance(value, str):
            return self.number(key, default)  # type: ignore[no-any-return]
        found = re.fullmatch(r"(\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+) ?([a-z]*)", value, re.IGNORECASE)
        if found is None or found[2].lower() not in _UNITS:
            raise ParseError(f"{self.what}: {key} must be a number of bytes such as 16GiB, not {value!r}")
        return float(found[1]) * _UNITS[found[2].lower()]

    def index(self, key: str, default: object = _DEFAULT) -> Any:
        value = self.get(key, default)
        if value is not default and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
            raise ParseError(f"{self.what}: {key} must be a non-negative integer, not {value!r}")
        return value

    def tables(self, key: str) -> Iterator[_Table]:
        entries = self.get(key, [])
        if not isinstance(entries, list):
            raise ParseError(f"{key} must be an array of tables", hint=f"write [[{key}]]")
        for entry in entries:
            table = _Table(f"[[{key}]]", entry)
            yield table
            table.done()

    def done(self) -> None:
        for key in self.table:
            if key not in self.known:
                near = difflib.get_close_matches(key, self.known, 1)
                raise ParseError(f"{self.what} has no key {key!r}", hint=f"did you mean {near[0]}?" if near else "")


def _stage(table: _Table, default: StageCosts) -> StageCosts:
    values: dict[str, Any] = {}
    for item in dataclasses.fields(StageCosts):
        usual = getattr(default, item.name)
        if item.name == "recompute":
            values[item.name] = table.get(item.name, usual)
            if not isinstance(values[item.name], bool):
                raise ParseError(f"{table.what}: recompute must be true or false")
        elif item.name.endswith("_bytes"):
            values[item.name] = round(table.size(item.name, usual))
        else:
            values[item.name] = table.number(item.name, usual)
    return StageCosts(**values)


def _link(table: _Table, default: Link) -> Link:
    return Link(table.number("latency", default.latency), table.size("bandwidth", default.bandwidth))


def _repeats(table: _Table, held: int) -> int:
    count: int = table.index("count", 1)
    if held + count > _MOST_ENTRIES:
        raise ParseError(f"there can be at most {_MOST_ENTRIES} entries")
    return count


def _read(content: Mapping[str, Any]) -> CostFile:
    root = _Table("the file", content)
    overlap, overhead = root.number("overlap", 0.0), root.number("overhead", 0.0)
    microbatches = root.index("microbatches", None) or None
    one = _Table("[each]", root.get("each", {}))
    each = _stage(one, StageCosts())
    one.done()
    one = _Table("[link]", root.get("link", {}))
    link = _link(one, Link())
    one.done()
    links = {(table.index("from"), table.index("to")): _link(table, link) for table in root.tables("links")}
    skips = {(table.index("from"), table.index("to")): round(table.size("bytes", 0)) for table in root.tables("skips")}
    stages: list[StageCosts] = []
    for table in root.tables("stages"):
        stages += [_stage(table, each)] * _repeats(table, len(stages))
    layers: list[Layer] = []
    for table in root.tables("layers"):
        count, name, costs = _repeats(table, len(layers)), table.get("name", "layer"), _stage(table, each)
        layers += [Layer(f"{name}.{i}" if count > 1 else str(name), costs) for i in range(count)]
    root.done()
    if stages and layers:
        raise ParseError("a cost file must contain either stages or layers, not both")
    shared = Costs(link=link, links=links, skip_bytes=skips, overlap=overlap, overhead=overhead)
    return CostFile(shared, each, tuple(stages), tuple(layers), microbatches)


def read(path: str | os.PathLike[str]) -> CostFile:
    """Reads a cost file. Raises ParseError if it is not valid."""
    name = repr(os.fspath(path))
    try:
        with open(path, "rb") as file:
            return _read(tomllib.load(file))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ParseError(f"{name}: {error}") from None
    except (ParseError, UsageError) as error:
        raise ParseError(f"{name}: {error.message}", hint=error.hint) from None
