r"""Table filter rules: the schemas, tables and columns that a list of patterns accepts (docs/filters.md).

A rule is `[!]schema.table`, for columns `[!]column`. The last rule that matches wins; without a match the
name is excluded. A name is a wildcard (`*`, `?`, `[a-z]`, `[!a-z]`; `\` escapes one character), or quoted by
backticks or double quotes, or a `/regular expression/`. Blank lines and `#` comments are ignored. Tables are
matched without case unless requested otherwise, columns always without case. System schemas are never
replicated. Source: TiDB `pkg/util/table-filter`, TiCDC `pkg/filter`.

Regular expressions are those of RE2, which have the same syntax and meaning as Go's `regexp`; pyarrow
contains it.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.errors import InvalidInput

Bools = npt.NDArray[np.bool_]

SYSTEM_SCHEMAS: Final = frozenset(
    {
        "information_schema",
        "inspection_schema",
        "lightning_task_info",
        "metrics_schema",
        "mysql",
        "performance_schema",
        "sys",
        "tidb_cdc",
        "workload_schema",
    }
)
SHOWN: Final = 200
"""How many characters of a rule an error shows."""
REMEMBERED: Final = 1 << 18
"""How many results a filter caches; when there are more, it clears the cache."""

_REGEX: Final = r"^(?P<taken>/(?:\\.|[^/])+/)"
"""Matched by RE2, as in TiDB. A backslash matches both alternatives, so Python's `re` would backtrack for
each."""
_QUOTED: Final = {'"': re.compile(r'"(?:""|[^"])+"'), "`": re.compile(r"`(?:``|[^`])+`")}
_CLASS: Final = re.compile(r"\[!?(?:\\[^0-9a-zA-Z]|[^\\\]])+\]")
_PLAIN: Final = re.compile(r"[A-Za-z0-9_$\u0080-\U0010ffff]")
_EXAMPLES: Final = "write schema.table, for example test.*, !test.tmp_?, `my.db`.`t`, /^db[0-9]+$/.*"


def is_system_schema(name: str) -> bool:
    """Whether a schema is one of TiDB's own, which are never replicated."""
    return name.lower() in SYSTEM_SCHEMAS


def lower(name: str) -> str:
    """As Go's `strings.ToLower`: each character becomes one character."""
    # One character for one, as Go's strings.ToLower does; Python's `lower` makes two of some (İ).
    return name.lower() if name.isascii() else "".join(sign.lower()[:1] for sign in name)


def found(pattern: str, texts: Sequence[str]) -> Bools:
    """Which texts contain a match of an RE2 expression: bool[len(texts)]. InvalidInput if it is not valid."""
    try:
        hits = pc.match_substring_regex(pa.array(texts, pa.string()), pattern)
    except pa.ArrowInvalid as error:
        raise InvalidInput(
            f"{pattern!r} is not a regular expression",
            why=str(error).removeprefix("Invalid regular expression: "),
            fix="write it as for Go's regexp (RE2)",
        ) from None
    answer: Bools = hits.to_numpy(zero_copy_only=False)
    return answer


@dataclass(frozen=True, slots=True)
class Pattern:
    """The pattern of one name: a literal, or an RE2 expression; both are empty for `*`."""

    literal: str | None = None
    regex: str = ""

    @property
    def any_name(self) -> bool:
        """Whether it is `*`, which matches every name."""
        return self.literal is None and not self.regex

    def folded(self) -> Pattern:
        """The pattern for names that were converted to lower case."""
        if self.literal is not None:
            return Pattern(lower(self.literal))
        return Pattern(None, "(?i)" + self.regex) if self.regex else self

    def matches(self, names: Sequence[str]) -> Bools:
        """Which names match: bool[len(names)]."""
        if self.literal is not None:
            return np.fromiter((name == self.literal for name in names), np.bool_, len(names))
        return found(self.regex, names) if self.regex else np.ones(len(names), np.bool_)


@dataclass(frozen=True, slots=True)
class _Rule:
    positive: bool
    schema: Pattern
    table: Pattern


class TableFilter:
    """Rules in order. InvalidInput names the rule that is not valid."""

    def __init__(self, rules: Sequence[str] = ("*.*",), case_sensitive: bool = False) -> None:
        self._fold = not case_sensitive
        parsed = [_parse_table(rule) for rule in rules]
        self._last_first = tuple(self._folded(rule) for rule in reversed(parsed) if rule is not None)
        self._known: dict[tuple[str, str], bool] = {}

    def _folded(self, rule: _Rule) -> _Rule:
        if not self._fold:
            return rule
        return _Rule(rule.positive, rule.schema.folded(), rule.table.folded())

    @property
    def key(self) -> Hashable:
        """Equal for filters with the same rules, which accept the same tables."""
        return self._fold, self._last_first

    def matches(self, schema: str, table: str) -> bool:
        """Whether changes of a table are accepted."""
        known = self._known.get((schema, table))
        return self.matching([(schema, table)])[0] if known is None else known

    def matching(self, names: Sequence[tuple[str, str]]) -> list[bool]:
        """`matches` for many tables (schema, table) at once; 100,000 new ones take about half a second."""
        known = self._known
        unknown = [name for name in dict.fromkeys(names) if name not in known]
        if len(known) + len(unknown) > REMEMBERED:
            known.clear()
            unknown = list(dict.fromkeys(names))
        if unknown:
            known |= zip(unknown, self.judge(unknown).tolist(), strict=True)
        answer = [known[name] for name in names]
        # One call may have more names than are remembered.
        if len(known) > REMEMBERED:
            known.clear()
        return answer

    def judge(self, names: Sequence[tuple[str, str]]) -> Bools:
        """`matching` without the cache: bool[len(names)]."""
        schemas = [lower(schema) if self._fold else schema for schema, _ in names]
        tables = [lower(table) if self._fold else table for _, table in names]
        passes = np.zeros(len(names), np.bool_)
        open_ = np.fromiter((not is_system_schema(schema) for schema, _ in names), np.bool_, len(names))
        for rule in self._last_first:
            if not open_.any():
                break
            fits = _by_distinct(rule.schema, schemas) & open_
            at = np.flatnonzero(fits)
            # Only for tables whose schema fits, because an expression costs time for each name.
            fits[at] = rule.table.matches([tables[i] for i in at])
            passes |= fits & rule.positive
            open_ &= ~fits
        return passes

    def matches_schema(self, schema: str) -> bool:
        """Whether DDL about a schema itself is accepted: it is if some table in it could be."""
        if is_system_schema(schema):
            return False
        name = [lower(schema) if self._fold else schema]
        for rule in self._last_first:
            # A rule that excludes some tables of a schema leaves others in it, so it decides nothing about
            # the schema.
            if (rule.positive or rule.table.any_name) and rule.schema.matches(name)[0]:
                return rule.positive
        return False


def _by_distinct(pattern: Pattern, names: Sequence[str]) -> Bools:
    """Match each distinct schema once, because there are few."""
    distinct = list(dict.fromkeys(names))
    verdict = dict(zip(distinct, pattern.matches(distinct).tolist(), strict=True))
    return np.fromiter((verdict[name] for name in names), np.bool_, len(names))


class ColumnFilter:
    """Column rules in order, without case. InvalidInput names the rule that is not valid."""

    def __init__(self, rules: Sequence[str]) -> None:
        parsed = [_parse_column(rule) for rule in rules]
        self._last_first = tuple(rule for rule in reversed(parsed) if rule is not None)

    def matches(self, column: str) -> bool:
        """Whether a column is accepted."""
        name = [lower(column)]
        return next((positive for positive, rule in self._last_first if rule.matches(name)[0]), False)


class ColumnsOfTables:
    """Rules `schema.table.column`, all of them wildcards without case: they match the columns that any rule
    names.

    InvalidInput names the rule that is not valid.
    """

    def __init__(self, rules: Sequence[str]) -> None:
        self._rules = [rule for text in rules if (rule := _parse_column_of_table(text)) is not None]

    def __bool__(self) -> bool:
        return bool(self._rules)

    def matches(self, schema: str, table: str, column: str) -> bool:
        """Whether a rule matches the column."""
        names = lower(schema), lower(table), lower(column)
        return any(
            all(pattern.matches([name])[0] for pattern, name in zip(rule, names, strict=True))
            for rule in self._rules
        )

    def of_table(self, schema: str, table: str) -> tuple[int, ...]:
        """The numbers of the rules that match the schema and the table."""
        names = lower(schema), lower(table)
        return tuple(
            at
            for at, rule in enumerate(self._rules)
            if all(pattern.matches([name])[0] for pattern, name in zip(rule[:2], names, strict=True))
        )


# --- parsing rules --------------------------------------------------------------------------------------


def _parse_table(text: str) -> _Rule | None:
    scanner = _Scanner.of(text, _EXAMPLES)
    if scanner is None:
        return None
    schema = scanner.pattern(dotted=True)
    scanner.expect_dot()
    table = scanner.pattern(dotted=True)
    scanner.expect_end()
    return _Rule(scanner.positive, schema, table)


def _parse_column(text: str) -> tuple[bool, Pattern] | None:
    scanner = _Scanner.of(text, "write names, for example *, !secret, addr_*")
    if scanner is None:
        return None
    pattern = scanner.pattern(dotted=False)
    scanner.expect_end()
    return scanner.positive, pattern.folded()


def _parse_column_of_table(text: str) -> tuple[Pattern, Pattern, Pattern] | None:
    scanner = _Scanner.of(text, "write schema.table.column, for example shop.users.phone or *.*.secret_*")
    if scanner is None:
        return None
    if not scanner.positive:
        raise scanner.fail("a rule names what it means, and does not take away from others")
    schema = scanner.pattern(dotted=True)
    scanner.expect_dot()
    table = scanner.pattern(dotted=True)
    scanner.expect_dot("no dot after the table", "between table and column patterns")
    column = scanner.pattern(dotted=True)
    scanner.expect_end()
    return schema.folded(), table.folded(), column.folded()


@dataclass(slots=True)
class _Scanner:
    """Reads the patterns of one rule."""

    rule: str
    text: str
    """The rule without its `!`."""
    positive: bool
    example: str
    at: int = field(default=0)

    @classmethod
    def of(cls, rule: str, example: str) -> _Scanner | None:
        """A scanner for a rule; None for a blank line or a comment."""
        text = rule.strip(" \t")
        if not text or text.startswith("#"):
            return None
        positive = not text.startswith("!")
        scanner = cls(rule, text if positive else text[1:], positive, example)
        if text.startswith("@"):
            raise scanner.fail("rule files are not supported")
        return scanner

    def fail(self, why: str) -> InvalidInput:
        shown = self.rule if len(self.rule) <= SHOWN else self.rule[:SHOWN] + "..."
        return InvalidInput(f"the filter rule {shown!r} cannot be read", why=why, fix=self.example)

    def pattern(self, *, dotted: bool) -> Pattern:
        """Read one name's pattern; `dotted`: it ends at a dot."""
        first = self.text[self.at : self.at + 1]
        if not first:
            raise self.fail("syntax error: missing pattern")
        if first == "/":
            return self.checked(self.expression()[1:-1])
        if first in _QUOTED:
            quoted = self.taken(_QUOTED[first], "incomplete quoted name")
            return Pattern(quoted[1:-1].replace(first * 2, first))
        return self.wildcard(dotted)

    def taken(self, form: re.Pattern[str], why: str) -> str:
        match = form.match(self.text, self.at)
        if match is None:
            raise self.fail(f"syntax error: {why}")
        self.at = match.end()
        return match[0]

    def expression(self) -> str:
        """A regular expression with its slashes."""
        match = pc.extract_regex(pa.scalar(self.text[self.at :]), _REGEX).as_py()
        if match is None:
            raise self.fail("syntax error: incomplete regular expression")
        taken: str = match["taken"]
        self.at += len(taken)
        return taken

    def checked(self, regex: str) -> Pattern:
        # This is what `*` was made into.
        if regex == "(?s)^.*$":
            return Pattern()
        try:
            found(regex, [""])
        except InvalidInput as error:
            raise self.fail(f"invalid pattern: {error.why}") from None
        return Pattern(None, regex)

    def wildcard(self, dotted: bool) -> Pattern:
        literal, regex, is_literal = "", "(?s)^", True
        while self.at < len(self.text):
            sign = self.text[self.at]
            if sign == "." and dotted:
                break
            if sign == "\\":
                sign = self.escaped()
                literal += sign
                # RE2 knows no escape of a character beyond ASCII, which needs none.
                regex += "\\" + sign if sign.isascii() else sign
            elif sign in "*?":
                is_literal = False
                regex += ".*" if sign == "*" else "."
            elif sign == "[":
                is_literal = False
                regex += self.char_class()
                continue
            elif _PLAIN.match(sign):
                literal += sign
                regex += "\\$" if sign == "$" else sign
            else:
                raise self.fail(f"unexpected special character {sign!r}: quote the name")
            self.at += 1
        return Pattern(literal) if is_literal else self.checked(regex + "$")

    def escaped(self) -> str:
        self.at += 1
        sign = self.text[self.at : self.at + 1]
        if not sign:
            raise self.fail("syntax error: cannot place \\ at the end")
        if sign.isascii() and sign.isalnum():
            raise self.fail(f"cannot escape a letter or number (\\{sign})")
        return sign

    def char_class(self) -> str:
        inner = self.taken(_CLASS, "failed to parse a character class")
        # Only `!` negates; a `^` is a character of the class.
        if inner[1] == "!":
            return "[^" + inner[2:]
        return "[\\^" + inner[2:] if inner[1] == "^" else inner

    def expect_dot(
        self, none: str = "no dot after the schema", between: str = "between schema and table patterns"
    ) -> None:
        if self.at == len(self.text):
            raise self.fail(f"wrong table pattern: {none}")
        if self.text[self.at] != ".":
            raise self.fail(f"syntax error: missing '.' {between}")
        self.at += 1

    def expect_end(self) -> None:
        if self.at != len(self.text):
            raise self.fail("syntax error: stray characters after the pattern")
