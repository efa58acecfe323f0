r"""Table filter rules: which schemas and tables a changefeed replicates (facts 7.4).

A rule is `[!]schema.table`; the last rule that matches wins, no match means excluded. Names are wildcards
(`*`, `?`, `[a-z]`, `[!a-z]`, `\` escapes one character), or quoted by backticks or double quotes, or
`/regular expressions/`. Blank lines and `#` comments say nothing. Without case, unless asked. System
schemas are always excluded. Source: TiDB `pkg/util/table-filter`, TiCDC `pkg/filter`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tidegate.errors import InvalidInput

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

_PLAIN: Final = re.compile(r"[A-Za-z0-9_$\u0080-\U0010ffff]")


def is_system_schema(name: str) -> bool:
    """Whether a schema is TiDB's own and never replicated."""
    return name.lower() in SYSTEM_SCHEMAS


@dataclass(frozen=True, slots=True)
class _Rule:
    positive: bool
    schema: re.Pattern[str]
    table: re.Pattern[str]
    any_table: bool


class TableFilter:
    """Rules in order; immutable. InvalidInput names the rule that cannot be read."""

    def __init__(self, rules: Sequence[str] = ("*.*",), case_sensitive: bool = False) -> None:
        parsed = [_parse(rule, case_sensitive) for rule in rules]
        self._last_first = tuple(rule for rule in reversed(parsed) if rule is not None)

    def matches(self, schema: str, table: str) -> bool:
        """Whether changes of a table are replicated."""
        if is_system_schema(schema):
            return False
        for rule in self._last_first:
            if rule.schema.search(schema) and rule.table.search(table):
                return rule.positive
        return False

    def matches_schema(self, schema: str) -> bool:
        """Whether DDL about a schema itself is replicated: some table in it could be."""
        if is_system_schema(schema):
            return False
        for rule in self._last_first:
            if rule.schema.search(schema) and (rule.positive or rule.any_table):
                return rule.positive
        return False


def _parse(text: str, case_sensitive: bool) -> _Rule | None:
    rest = text.strip()
    if not rest or rest.startswith("#"):
        return None
    positive = not rest.startswith("!")
    scanner = _Scanner(text, rest if positive else rest[1:], 0 if case_sensitive else re.IGNORECASE)
    schema, _ = scanner.name()
    scanner.expect_dot()
    table, any_table = scanner.name()
    scanner.expect_end()
    return _Rule(positive, schema, table, any_table)


class _Scanner:
    """Reads the two names of one rule."""

    def __init__(self, rule: str, text: str, flags: int) -> None:
        self.rule, self.text, self.flags, self.at = rule, text, flags | re.DOTALL, 0

    def fail(self, why: str) -> InvalidInput:
        return InvalidInput(
            f"the filter rule {self.rule!r} cannot be read",
            why=why,
            fix="write schema.table, for example test.*, !test.tmp_?, `my.db`.`t`, /^db[0-9]+$/.*",
        )

    def name(self) -> tuple[re.Pattern[str], bool]:
        """One name's pattern, and whether it takes every name."""
        first = self.text[self.at : self.at + 1]
        if first == "@":
            raise self.fail("rule files are not supported")
        if first == "/":
            return self.compile(self.regex()), False
        if first in ('"', "`"):
            return self.compile(rf"\A{re.escape(self.quoted(first))}\Z"), False
        start = self.at
        pattern = self.wildcard()
        return self.compile(rf"\A{pattern}\Z"), self.text[start : self.at] == "*"

    def compile(self, pattern: str) -> re.Pattern[str]:
        try:
            return re.compile(pattern, self.flags)
        except (re.error, RecursionError, OverflowError) as error:
            raise self.fail(f"invalid pattern: {error}") from None

    def regex(self) -> str:
        match = re.compile(r"/((?:[^/\\]|\\.)*)/", re.DOTALL).match(self.text, self.at)
        if match is None:
            raise self.fail("a regular expression lacks its closing /")
        self.at = match.end()
        return match[1].replace(r"\/", "/")

    def quoted(self, quote: str) -> str:
        match = re.compile(f"{quote}((?:[^{quote}]|{quote}{quote})+){quote}").match(self.text, self.at)
        if match is None:
            raise self.fail(f"a quoted name lacks its closing {quote}")
        self.at = match.end()
        return match[1].replace(quote * 2, quote)

    def wildcard(self) -> str:
        out = ""
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == "*":
                out += ".*"
            elif char == "?":
                out += "."
            elif char == "[":
                out += self.char_class()
                continue
            elif char == "\\" and self.at + 1 < len(self.text):
                self.at += 1
                out += re.escape(self.text[self.at])
            elif _PLAIN.match(char):
                out += re.escape(char)
            else:
                break
            self.at += 1
        if not out:
            raise self.fail("a name is missing or starts with a character that must be quoted")
        return out

    def char_class(self) -> str:
        match = re.compile(r"\[(!?)((?:[^\]\\]|\\.)+)\]").match(self.text, self.at)
        if match is None:
            raise self.fail("a character class lacks its closing ]")
        self.at = match.end()
        inner = match[2].replace("[", r"\[").replace("^", r"\^").replace("&&", r"&\&").replace("||", r"|\|")
        return f"[{'^' if match[1] else ''}{inner}]"

    def expect_dot(self) -> None:
        if self.text[self.at : self.at + 1] != ".":
            raise self.fail("wrong table pattern: no dot after the schema")
        self.at += 1

    def expect_end(self) -> None:
        if self.at != len(self.text):
            raise self.fail("stray characters after the table pattern")
