"""Checks the docstrings of kernels (reads, writes, bound, twin), and that parameters have words for names.

python -m tools.kernel_docs     prints each place that breaks a rule

A test (`tests/test_tidy.py`) fails if there is any. The rules:

params     no parameter of a `@kernel`, `@shared` or `@inline` function has a name of one letter
sentence   each of these functions has a docstring of a whole sentence
contract   the docstring of a `@kernel` or `@shared` function has sentences that begin with `Reads`, `Writes`, `Bound:` and
           `Twin:`, and, if there is one, `Trick:`; `Reads and writes` is both
twin       after `Twin:` or `Twins:` come functions, methods or classes that exist, as dotted paths in
           backticks that begin with `tidegate` or `tests`; or `none` with the reason
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from tools.kernel_numbers import ROOT, compiled_by, kernel_files

TREES: Final = {"tidegate": ROOT.parent, "tests": ROOT.parents[1]}
"""The folder that holds the package with which a dotted path begins."""
LABEL: Final = re.compile(r"(?:^|(?<=[.:)`] ))(Reads and writes|Reads|Writes|Bound:|Twins?:|Trick:)(?= )")
REASON_WORDS: Final = 3
"""The least number of words after `none` that count as a reason."""
SENTENCE_WORDS: Final = 3


class Place(NamedTuple):
    """One broken rule."""

    file: str
    line: int
    rule: str
    text: str


def places(folder: Path = ROOT) -> Iterator[Place]:
    """All broken rules in the kernels under a folder."""
    for file in kernel_files(folder):
        for node in ast.walk(ast.parse(file.read_text())):
            decorator = compiled_by(node)
            if isinstance(node, ast.FunctionDef) and decorator:
                for rule, text in _broken(node, decorator):
                    yield Place(str(file.relative_to(folder)), node.lineno, rule, f"{node.name}: {text}")


def _broken(node: ast.FunctionDef, decorator: str) -> Iterator[tuple[str, str]]:
    letters = [one.arg for one in node.args.args if len(one.arg.strip("_")) == 1]
    if letters:
        yield "params", ", ".join(letters)
    text = " ".join((ast.get_docstring(node) or "").split())
    if not text.endswith(".") or len(text.split()) < SENTENCE_WORDS:
        yield "sentence", text or "no docstring"
    elif decorator != "inline":
        yield from _broken_contract(text)


def _broken_contract(text: str) -> Iterator[tuple[str, str]]:
    said = clauses(text)
    missing = [label for label in ("Reads", "Writes", "Bound", "Twin") if not said.get(label)]
    if missing:
        yield "contract", "no " + ", ".join(missing)
    twin = said.get("Twin")
    if twin and re.match(r"none\b", twin):
        if len(twin.split()) <= REASON_WORDS:
            yield "twin", "none, without a reason"
    elif twin:
        paths = re.findall(r"`((?:tidegate|tests)\.[\w.]+)`", twin)
        gone = [path for path in paths if not exists(path)]
        if gone or not paths:
            yield "twin", ", ".join(gone) or "no dotted path"


def clauses(text: str) -> dict[str, str]:
    """The text after each label in a docstring of one line. Labels are without colon and plural."""
    _, *parts = LABEL.split(text)
    said: dict[str, str] = {}
    for label, clause in zip(parts[::2], parts[1::2], strict=True):
        names = ("Reads", "Writes") if label == "Reads and writes" else (label.rstrip(":"),)
        for name in names:
            said["Twin" if name == "Twins" else name] = clause.strip()
    return said


def exists(path: str) -> bool:
    """Whether a dotted path leads to a function, a method or a class."""
    names = path.split(".")
    for size in range(len(names) - 1, 0, -1):
        file = TREES[names[0]].joinpath(*names[:size])
        file = file / "__init__.py" if file.is_dir() else file.with_suffix(".py")
        if file.is_file():
            return ".".join(names[size:]) in _definitions(file)
    return False


@cache
def _definitions(file: Path) -> frozenset[str]:
    """The functions and classes of a file, and the methods of its classes as `Class.method`."""
    found: set[str] = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{one.name}" for one in node.body if isinstance(one, ast.FunctionDef)}
    return frozenset(found)


def main() -> int:
    """Print the places. Returns 1 if there are any."""
    found = list(places())
    for one in found:
        print(f"{one.file}:{one.line}: {one.rule}: {one.text}")
    return int(bool(found))


if __name__ == "__main__":
    raise SystemExit(main())
