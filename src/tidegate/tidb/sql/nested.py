"""An expression as TiDB writes it, and how its smaller parts reach what contains them again.

Operators contain operands, operands contain calls and queries, and these contain whole expressions. A part
gets the parts below it when it is made. Those above it are in `Nested`, which `grammar` fills when all parts
exist.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol


class Expr(NamedTuple):
    """An expression as TiDB writes it."""

    text: str
    kind: str = ""
    """The kind: `value`, `column`, `call`, `exists`, `subquery`, `row`, `operation`, `mod` ..."""
    parts: tuple[str, ...] = ()
    """The members of a row."""


class AnyExpression(Protocol):
    """Reads whole expressions: `expressions.Expressions`."""

    def expr(self) -> Expr:
        """An expression."""

    def expression(self) -> str:
        """The text of an expression as TiDB writes it."""


class AnyCall(Protocol):
    """Reads expressions that begin with a word: `calls.Calls`."""

    def call(self) -> Expr | None:
        """A function or another construct that begins with a word, if one comes next."""


class AnyQuery(Protocol):
    """Reads queries: `queries.Queries`."""

    def query(self, first: str = "") -> str:
        """A query; with `first`, one whose first part in parentheses was already read."""


class Nested:
    """The parts that smaller parts contain."""

    expressions: AnyExpression
    calls: AnyCall
    queries: AnyQuery
