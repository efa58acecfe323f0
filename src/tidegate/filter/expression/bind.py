"""Binds a syntax tree to the columns and types of one table version, or refuses it.

Types of comparisons follow TiDB: numbers as integers, decimals or floating numbers; texts by their collation;
a text and a number as floating numbers, unless the text is a constant that the column's own type can hold;
constants and dates or times as dates or times; enum and set columns by name with texts, by number with
numbers. Constant parts are computed here, once.
"""

from __future__ import annotations

from typing import Final

from tidegate.filter.expression import constants, patterns
from tidegate.filter.expression.arithmetic import OPERATORS
from tidegate.filter.expression.columns import assigned, column_of, virtual_columns
from tidegate.filter.expression.compare import COMPARISONS, compare, is_in
from tidegate.filter.expression.fold import connect, null, number, truth
from tidegate.filter.expression.functions import FUNCTIONS, choose
from tidegate.filter.expression.syntax import Call, Literal, Name, Node, Refusal, parse
from tidegate.filter.expression.typed import NUMBERS, Typed
from tidegate.model.schema import TableSchema

VIRTUAL_DEPTH: Final = 3
"""The greatest depth of virtual columns that use other virtual columns."""


def bind(text: str, table: TableSchema) -> Typed:
    """Bind a whole expression to a table. Raises Refusal."""
    found = _Binder(table).bind(parse(text))
    # An enum or a set alone counts as its number, as a condition does in TiDB. As a text it would drop
    # nothing.
    return found if found.hybrid is None else number(found, "")


class _Binder:
    """Binds one tree. `depth`: the nesting of virtual columns so far."""

    def __init__(self, table: TableSchema, depth: int = 0) -> None:
        self.table, self.depth = table, depth

    def bind(self, node: Node) -> Typed:
        match node:
            case Literal():
                return constants.typed(node)
            case Name():
                return self.name(node)
            case Call(name="case"):
                return self.case(node)
        # After CASE, whose missing value is a literal that only `case` can tell from NULL.
        args = [self.bind(arg) for arg in node.args]
        match node.name:
            case "in":
                tests, nulls = is_in(args[0], args[1:], node.at)
                return connect("or", [*tests, null(node.at)] if nulls else tests, node.at)
            case "between":
                return between(args[0], args[1], args[2], node.at)
            case "like":
                return patterns.like(args[0], args[1], args[2], node.at)
            case "regexp":
                return patterns.regexp(args[0], args[1], node.at)
            case "or" | "and" as op:
                return connect(op, args, node.at)
        return self.call(node.name, args, node.at)

    def call(self, name: str, args: list[Typed], at: int) -> Typed:
        if name in COMPARISONS:
            return compare(name, args[0], args[1], at)
        if name in OPERATORS:
            return OPERATORS[name](name, args, at)
        if name not in FUNCTIONS:
            known = ", ".join(sorted(FUNCTIONS))
            raise Refusal(f"{name}() is not in the subset; functions are {known}", at)
        least, most, make = FUNCTIONS[name]
        if not least <= len(args) <= most:
            wanted = str(least) if least == most else f"at least {least}"
            raise Refusal(f"{name}() takes {wanted} arguments, not {len(args)}", at)
        return make(name, args, at)

    def name(self, node: Name) -> Typed:
        *qualifier, name = node.parts
        mine = [self.table.table, self.table.schema]
        if any(q.lower() != m.lower() for q, m in zip(reversed(qualifier), mine, strict=False)):
            raise Refusal(f"{'.'.join(qualifier)} is not the table of the row", node.at)
        for position, column in enumerate(self.table.columns):
            if column.name.lower() == name.lower():
                return column_of(column, position, node.at)
        return self.virtual(name, node.at)

    def virtual(self, name: str, at: int) -> Typed:
        """A virtual column, replaced by its bound expression."""
        column = next((c for c in virtual_columns(self.table) if c.name.lower() == name.lower()), None)
        if column is None:
            known = ", ".join(column.name for column in self.table.columns)
            raise Refusal(f"there is no column '{name}'; the table has {known}", at, column=name)
        if self.depth == VIRTUAL_DEPTH:
            raise Refusal("virtual columns lie too deep within each other", at)
        try:
            found = _Binder(self.table, self.depth + 1).bind(parse(column.generated))
            return assigned(column, found, at)
        except Refusal as refusal:
            why = f"the virtual column {column.name} is {column.generated}; {refusal.why}"
            raise Refusal(why, at) from None

    def case(self, node: Call) -> Typed:
        """CASE as nested IFs, made from the last branch to the first."""
        value, *pairs, otherwise = node.args
        subject = None if isinstance(value, Literal) and value.at == -1 else self.bind(value)
        found = self.bind(otherwise)
        for when, then in reversed(list(zip(pairs[::2], pairs[1::2], strict=True))):
            condition = self.bind(when)
            test = truth(condition) if subject is None else compare("=", subject, condition, node.at)
            found = choose("if", [test, self.bind(then), found], node.at)
        return found


def between(value: Typed, low: Typed, high: Typed, at: int) -> Typed:
    """`low <= value AND value <= high`."""
    tests = [compare(">=", value, low, at), compare("<=", value, high, at)]
    sides = {test.args[0].domain in NUMBERS for test in tests if test.args}
    if len(sides) > 1:
        raise Refusal("BETWEEN a number and a text is not in the subset", at)
    return connect("and", tests, at)
