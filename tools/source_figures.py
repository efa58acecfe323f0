"""Figures of the source: how much is explained, how long functions, classes and files are.

    python -m tools.source_figures [TREE ...]      # default: src/tidegate; several trees are columns

Use it with the trees of two commits to see what has changed between them. Generated files (`proto`) are left out.
A kernel is a function in a file of kernels that is decorated with `kernel`, `shared` or `inline`. Its numbers are the
integers in its body except 0, 1 and -1. A line of comment has nothing else.
"""

from __future__ import annotations

import ast
import statistics
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table
from tools.kernel_numbers import COMPILING

LONG_FILE: Final = 400
LARGE_FILE: Final = 500
LARGE_CLASS: Final = 300
PLAIN: Final = (0, 1)
HARD: Final = "puller", "eventstore", "kvclient", "control", "server", "pipeline", "sink", "consumer", "tikv"
"""The folders whose comments are counted by themselves, and KERNELS."""
KERNELS: Final = "kernels"
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(slots=True)
class Figures:
    """The counts of one tree."""

    files: list[int] = field(default_factory=list)
    """Lines of each file."""
    comments: int = 0
    rooms: dict[str, tuple[int, int]] = field(default_factory=dict)
    """For each folder, and for the files of kernels: lines of comment, and all lines."""
    docstrings: int = 0
    functions: list[int] = field(default_factory=list)
    """Lines of each function, without its docstring."""
    classes: list[int] = field(default_factory=list)
    any_names: int = 0
    kernel_arguments: list[int] = field(default_factory=list)
    kernel_numbers: int = 0

    def add(self, path: Path, room: str) -> None:
        """Count one file. `room`: its folder at the top of the tree."""
        with tokenize.open(path) as opened:
            text = opened.read()
        self.files.append(text.count("\n"))
        comments = sum(line.lstrip().startswith("#") for line in text.splitlines())
        self.comments += comments
        tree = ast.parse(text)
        has_kernels = path.name.endswith("kernels.py") or path.parent.name == "kernels"
        for one in (room, *([KERNELS] if has_kernels else [])):
            before = self.rooms.get(one, (0, 0))
            self.rooms[one] = before[0] + comments, before[1] + self.files[-1]
        for node in ast.walk(tree):
            if isinstance(node, Function | ast.ClassDef | ast.Module):
                self.docstrings += _docstring_lines(node)
            if isinstance(node, Function):
                self.functions.append(_lines(node) - _docstring_lines(node))
                if has_kernels and _is_kernel(node):
                    self.kernel_arguments.append(len(node.args.args))
                    self.kernel_numbers += sum(1 for _ in _numbers(node))
            elif isinstance(node, ast.ClassDef):
                self.classes.append(_lines(node))
            elif isinstance(node, ast.Name) and node.id == "Any":
                self.any_names += 1

    def rows(self) -> Iterator[tuple[str, str]]:
        """The figures by name."""
        lines = sum(self.files)
        yield "files", f"{len(self.files):,}"
        yield "lines", f"{lines:,}"
        yield "lines of comment", f"{self.comments:,} ({100 * self.comments / lines:.2f} %)"
        for room in (*HARD, KERNELS):
            comments, of_room = self.rooms.get(room, (0, 0))
            yield f"lines of comment in {room}", f"{100 * comments / of_room:.2f} %" if of_room else "-"
        yield "lines of docstring", f"{self.docstrings:,} ({100 * self.docstrings / lines:.1f} %)"
        yield f"files above {LONG_FILE} lines", f"{sum(n > LONG_FILE for n in self.files)}"
        yield f"files above {LARGE_FILE} lines", f"{sum(n > LARGE_FILE for n in self.files)}"
        yield f"classes above {LARGE_CLASS} lines", f"{sum(n > LARGE_CLASS for n in self.classes)}"
        yield "longest class", f"{max(self.classes)}"
        yield "functions", f"{len(self.functions):,}"
        yield "lines of a function, median", f"{statistics.median(self.functions):.0f}"
        yield "lines of a function, 90th percentile", f"{statistics.quantiles(self.functions, n=10)[-1]:.0f}"
        yield "Any", f"{self.any_names:,}"
        yield "kernels", f"{len(self.kernel_arguments):,}"
        yield "arguments of a kernel, median", f"{statistics.median(self.kernel_arguments):.0f}"
        yield "arguments of a kernel, most", f"{max(self.kernel_arguments)}"
        yield "kernels with 8 arguments or more", f"{sum(n >= 8 for n in self.kernel_arguments)}"
        yield "numbers in kernels", f"{self.kernel_numbers:,}"


def of(tree: Path) -> Figures:
    """The figures of all Python files under a folder."""
    found = Figures()
    for path in sorted(tree.rglob("*.py")):
        parts = path.relative_to(tree).parts
        if "proto" not in parts:
            found.add(path, parts[0])
    return found


def _lines(node: Function | ast.ClassDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _docstring_lines(node: Function | ast.ClassDef | ast.Module) -> int:
    first = node.body[0] if node.body else None
    is_docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    if first is None or not is_docstring or ast.get_docstring(node) is None:
        return 0
    return (first.end_lineno or first.lineno) - first.lineno + 1


def _is_kernel(node: Function) -> bool:
    names = (one.id for one in node.decorator_list if isinstance(one, ast.Name))
    return any(name in COMPILING for name in names)


def _numbers(node: Function) -> Iterator[int]:
    for statement in node.body:
        for one in ast.walk(statement):
            if isinstance(one, ast.Constant) and type(one.value) is int and one.value not in PLAIN:
                yield one.value


def main() -> None:
    """Print one column for each tree."""
    trees = [Path(name) for name in sys.argv[1:]] or [Path("src/tidegate")]
    table = Table(title="The source in figures")
    table.add_column("figure")
    for tree in trees:
        table.add_column(str(tree), justify="right")
    columns = [dict(of(tree).rows()) for tree in trees]
    for name in columns[0]:
        table.add_row(name, *(column[name] for column in columns))
    Console().print(table)


if __name__ == "__main__":
    main()
