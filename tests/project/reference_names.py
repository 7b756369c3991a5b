"""Writes the names of the reference's classes and functions to reference_names.txt, next to this file.

Run it by hand when the version of the reference changes: python3 tests/project/reference_names.py. The list is
committed, so the check of docs/reference-map.md needs no Python. Nested functions and methods are not listed.
"""

import ast
import importlib.util
import pathlib

FILES = {
    "pipelining": "_utils stage _IR schedules microbatch _backward _unflatten _schedule_visualizer",
    "tensor/parallel": "_data_parallel_utils api style loss input_reshard ddp fsdp",
}


def names(path: pathlib.Path) -> list[str]:
    """Returns the classes and functions at the top level of a file, including those under `if` and `try`."""
    found = []
    todo = list(ast.parse(path.read_text()).body)
    while todo:
        node = todo.pop(0)
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            found.append(node.name)
        elif isinstance(node, (ast.If, ast.Try)):
            todo = list(ast.iter_child_nodes(node)) + todo
    return list(dict.fromkeys(found))


def main() -> None:
    root = pathlib.Path(importlib.util.find_spec("torch").origin).parent / "distributed"
    lines = []
    for folder, files in FILES.items():
        for file in files.split():
            lines += [f"{folder}/{file}.py {name}" for name in names(root / folder / f"{file}.py")]
    pathlib.Path(__file__).with_suffix(".txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
