"""Finds numbers in kernels that should have names: enumeration values, ASCII codes, byte offsets, long argument lists.

python -m tools.kernel_numbers [--places]     counts by file and kind, and each place

A test (`tests/test_tidy.py`) limits the counts. The tool reads the syntax tree of every compiled function
(`COMPILING`), so the rules are about form, not about meaning:

enum     a number compared with `==`, `!=` or `in`, unless the other side is a size, a count or a month
ascii    a character's code that is stored as a byte, or compared with a byte
offset   a number added to the address of a load or store of 4 or 8 bytes, or multiplied into it as the size of
         a record; the next element of an array (`ends + 4 * i + 4`) has no name and needs none
params   a function that takes more than 7 arguments
"""

from __future__ import annotations

import ast
import itertools
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[1] / "src" / "tidegate"
COMPILING: Final = ("kernel", "shared", "inline")
"""The decorators of `tidegate.kernel`."""
MOST_PARAMS: Final = 7
WORDS: Final = frozenset({"U64", "I64", "i64", "int", "np.uint64", "np.int64", "np.uint32", "np.uint8"})
"""Conversions. A number inside one still counts as a bare number."""
BYTES: Final = frozenset({"byte", "letter", "short", "lead"})
"""Variables with one byte of a text."""
ENUMS: Final = frozenset(
    {"kind", "op", "code", "form", "flag", "wire", "field", "tag", "wanted", "branch", "version"}
)
"""Variables with an enumeration's value, for which 0 and 1 count as well."""
RESULTS: Final = frozenset({"code", "tag"})
"""The variables among these for which 0 means nothing: no fault, no entry."""
MEASURES: Final = frozenset(
    [
        "size",
        "length",
        "width",
        "used",
        "rest",
        "left",
        "i",
        "k",
        "at",
        "room",
        "month",
        "months",
        "year",
        "shift",
        "key_size",
        "tail_size",
        "value_size",
        "fsp",
        "back",
        "at_end",
        "padding",
        "head",
        "lower",
        "last",
        "depth",
        "count",
        "step",
    ]
)
"""Variables with a size or a count, which may be compared with a bare number."""
RECORDS: Final = frozenset({16, 24, 32, 40, 48, 64})
"""Sizes of records; 8 and 4 are sizes of words."""


class Place(NamedTuple):
    """One bare number, or one long argument list."""

    file: str
    line: int
    kind: str
    text: str


def places(folder: Path = ROOT) -> Iterator[Place]:
    """All such places in the kernels under a folder."""
    for file in kernel_files(folder):
        name = str(file.relative_to(folder))
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef) and compiled_by(node):
                for found in _in_function(node):
                    yield Place(name, *found)


def kernel_files(folder: Path) -> list[Path]:
    """The files under a folder that contain kernels or helpers of kernels."""
    return sorted({*folder.rglob("*kernels.py"), *folder.glob("*/kernels/*.py"), folder / "kernel.py"})


def compiled_by(node: ast.AST) -> str:
    """The decorator that compiles a function: one of `COMPILING`. Empty if it is not compiled."""
    for one in node.decorator_list if isinstance(node, ast.FunctionDef) else ():
        if isinstance(one, ast.Name) and one.id in COMPILING:
            return one.id
    return ""


def _in_function(node: ast.FunctionDef) -> Iterator[tuple[int, str, str]]:
    if len(node.args.args) > MOST_PARAMS:
        yield node.lineno, "params", f"{node.name}: {len(node.args.args)}"
    for part in ast.walk(node):
        if isinstance(part, ast.Compare):
            yield from _compared(part)
        elif isinstance(part, ast.BinOp) and isinstance(part.op, ast.Add | ast.Sub):
            if _number(part.right) in (48, 55, 65, 71, 87) or _number(part.left) in (48, 55, 65, 71):
                yield part.lineno, "ascii", ast.unparse(part)
        elif isinstance(part, ast.Call) and isinstance(part.func, ast.Name):
            yield from _moved(part, part.func.id)
        elif isinstance(part, ast.Assign) and _is_code_of_a_byte(part):
            yield part.lineno, "ascii", ast.unparse(part)


def _number(node: ast.AST) -> int | None:
    """The number of a node, directly or inside a conversion. None: it is not a number."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.Call) and len(node.args) == 1 and ast.unparse(node.func) in WORDS:
        return _number(node.args[0])
    return None


def _is_code_of_a_byte(node: ast.Assign) -> bool:
    """Whether a variable of one byte is assigned a number that is the code of a character."""
    return ast.unparse(node.targets[0]) in BYTES and (_number(node.value) or 0) >= 8


def _compared(node: ast.Compare) -> Iterator[tuple[int, str, str]]:
    sides = [node.left, *node.comparators]
    for (one, other), op in zip(itertools.pairwise(sides), node.ops, strict=True):
        numbers = [_number(side) for side in (one, other)]
        if isinstance(other, ast.Tuple | ast.Set):
            numbers += [_number(part) for part in other.elts]
        for number in numbers:
            if number is not None:
                plain = ast.unparse(other if number == numbers[0] and _number(one) is not None else one)
                kind = _kind_of(plain, number, op)
                if kind:
                    yield node.lineno, kind, ast.unparse(node)


def _kind_of(other: str, number: int, op: ast.cmpop) -> str | None:
    """The kind of place that a number compared with `other` is. None: it may be bare."""
    bare = other.removeprefix("I64(").removeprefix("int(")
    if bare.startswith("load_u8(") or other in BYTES:
        is_code = number in range(8, 14) or number in range(32, 127)
        if is_code:
            return "ascii"
        return "enum" if number > 1 and number < 8 and isinstance(op, ast.Eq | ast.NotEq) else None
    if not isinstance(op, ast.Eq | ast.NotEq | ast.In | ast.NotIn):
        return None
    if (other in ENUMS and (number > 0 or other not in RESULTS)) or (
        number > 1 and other not in MEASURES and other.isidentifier()
    ):
        return "enum"
    return None


def _moved(call: ast.Call, name: str) -> Iterator[tuple[int, str, str]]:
    text = ast.unparse(call)
    if name.startswith("store_u") and len(call.args) == 2:
        width = int(name.removeprefix("store_u")) // 8
        if any(_is_text(number, width) for number in _choices(call.args[1])):
            yield call.lineno, "ascii", text
    if name.endswith(("32", "64")) and name.startswith(("load_", "store_")):
        terms = list(_terms(call.args[0]))
        strides = {_number(part) for term in terms if isinstance(term, ast.BinOp) for part in ast.walk(term)}
        for term in terms:
            if _is_offset(term, strides - {None}):
                yield call.lineno, "offset", text


def _is_offset(term: ast.AST, strides: set[int | None]) -> bool:
    """Whether a term of an address is a field's offset, or the place of a record by its size."""
    number = _number(term)
    if number is not None:
        return number >= 4 and number not in strides
    if not isinstance(term, ast.BinOp) or not isinstance(term.op, ast.Mult):
        return False
    return bool({_number(term.left), _number(term.right)} & RECORDS)


def _terms(node: ast.AST) -> Iterator[ast.AST]:
    """The terms of a sum."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        yield from _terms(node.left)
        yield from _terms(node.right)
    else:
        yield node


def _choices(node: ast.AST) -> Iterator[int]:
    """The numbers that a stored value may have, or that it is composed of."""
    number = _number(node)
    if number is not None:
        yield number
    elif isinstance(node, ast.IfExp):
        yield from _choices(node.body)
        yield from _choices(node.orelse)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        yield from _choices(node.left)
        yield from _choices(node.right)


def _is_text(number: int, width: int) -> bool:
    """Whether a stored number of `width` bytes is one or more characters."""
    if number < 9 or number >= 1 << (8 * width):
        return False
    used = number.to_bytes(width, "little").rstrip(b"\0").lstrip(b"\0")
    return all(32 <= byte < 127 for byte in used)


def main() -> int:
    """Print the counts."""
    found = list(places())
    counts = Counter((one.file, one.kind) for one in found)
    for (file, kind), number in sorted(counts.items()):
        print(f"{file:40} {kind:8} {number}")
    for kind, number in sorted(Counter(one.kind for one in found).items()):
        print(f"{'all':40} {kind:8} {number}")
    if "--places" in sys.argv:
        for one in found:
            print(f"{one.file}:{one.line}: {one.kind}: {one.text}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
