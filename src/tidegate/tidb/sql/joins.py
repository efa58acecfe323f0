"""The sources of a query as a tree: TiDB writes joins according to this tree, not according to their text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

LEFT: Final = "LEFT"
RIGHT: Final = "RIGHT"


@dataclass(slots=True)
class Source:
    """A table or a query with its name."""

    text: str
    is_query: bool = False


@dataclass(slots=True)
class Join:
    """Two joined sources; only one if `right` is missing."""

    left: Node
    right: Node | None = None
    side: str = ""
    natural: bool = False
    straight: bool = False
    condition: str = ""
    in_parentheses: bool = False


Node = Source | Join


def cross(left: Node, right: Node) -> Join:
    """A join without a condition. If the right side is a join, `left` is joined with its leftmost source."""
    if not isinstance(right, Join) or right.right is None or right.in_parentheses:
        return Join(left, right)
    outer = right
    while True:
        if outer.side == RIGHT and outer.in_parentheses and outer.right is not None:
            outer.left, outer.right, outer.side = outer.right, outer.left, LEFT
        inner = outer.left
        if not (isinstance(inner, Join) and inner.right is not None):
            break
        outer = inner
    outer.left = Join(left, outer.left)
    return right


def written(node: Node) -> str:
    """The text after FROM. The long side of a chain, the left one, is handled without recursion."""
    chain: list[Join] = []
    while isinstance(node, Join):
        chain.append(node)
        node = node.left
    parts = [node.text]
    opened = 0
    inner: Node = node
    for join in reversed(chain):
        comma = _is_query_alone(inner)
        if isinstance(inner, Join) and not comma:
            opened += 1
            parts.append(")")
        parts.append(_right(join, comma))
        inner = join
    return "(" * opened + "".join(parts)


def _is_query_alone(node: Node) -> bool:
    return (
        isinstance(node, Join) and node.right is None and isinstance(node.left, Source) and node.left.is_query
    )


def _right(join: Join, comma: bool) -> str:
    if join.right is None:
        return ""
    words = " NATURAL" if join.natural else ""
    words += f" {join.side}" if join.side else ""
    words += " STRAIGHT_JOIN " if join.straight else ", " if comma else " JOIN "
    right = written(join.right)
    if isinstance(join.right, Join):
        right = f"({right})"
    return words + right + join.condition
