"""Topic expressions: from the name of a table to the topic of its rows, as TiCDC names it. Pure.

    [A-Za-z0-9._-]* {schema}? ([A-Za-z0-9._-]* {table})? [A-Za-z0-9._-]*
    if the topic names a schema registry's subjects and the expression is not constant: both placeholders

Each character that a topic's name may not have becomes `_`. A name that is longer than `NAME_MAX` is cut off;
the names `.` and `..` become `_` and `__`. So two tables may share a topic. That is correct, because rows and
DDL name their table. Upstream: tiflow `cdc/sink/dmlsink/mq/dispatcher/topic/expression.go`.
"""

from __future__ import annotations

import re
from typing import Final

from tidegate.errors import InvalidInput

NAME_MAX: Final = 249
"""The most characters of a topic's name."""
SCHEMA, TABLE = "{schema}", "{table}"

_LITERAL: Final = r"[A-Za-z0-9._-]*"
_CONSTANT: Final = re.compile(r"[A-Za-z0-9._-]+")
_EXPRESSION: Final = re.compile(rf"{_LITERAL}({{schema}})?({_LITERAL}{{table}})?{_LITERAL}")
_BOTH: Final = re.compile(rf"{_LITERAL}{{schema}}{_LITERAL}{{table}}{_LITERAL}")
_FORBIDDEN: Final = re.compile(r"[^A-Za-z0-9._-]")


def check_expression(expression: str, where: str, *, names_subjects: bool = False) -> None:
    """Raises InvalidInput, with TiCDC's code, unless topics can be named by the expression.

    `names_subjects`: schemas are registered under the topic's name, so each table needs a topic of its own.
    """
    if is_constant(expression):
        why = _unusable(expression)
        fix = "use 1 to 249 of A-Z a-z 0-9 . _ -, and not . or .. alone"
    elif names_subjects:
        why = "" if _BOTH.fullmatch(expression) else _BOTH_WHY
        fix = f"write for example {SCHEMA}_{TABLE}, or the name of one topic"
    else:
        why = "" if _EXPRESSION.fullmatch(expression) else _WHY
        fix = f"write for example cdc_{SCHEMA}_{TABLE}, {SCHEMA}, {TABLE}.log, or the name of one topic"
    if why:
        raise InvalidInput(
            f"[CDC:ErrKafkaTopicExprInvalid]invalid topic expression: {expression[:300]}",
            where=where,
            why=why,
            fix=fix,
        )


_WHY: Final = (
    f"it may have {SCHEMA} once, behind it {TABLE} once, and around them letters, digits and . _ - only"
)
_BOTH_WHY: Final = (
    f"topic rule for Avro must contain {SCHEMA} and {TABLE}, in this order and once: the subjects of its "
    "schemas are named by the topic, so that tables of one topic would share one"
)


def _unusable(constant: str) -> str:
    if constant in (".", ".."):
        return "no topic can have this name"
    return f"a topic's name has {NAME_MAX} characters at most" if len(constant) > NAME_MAX else ""


def is_constant(expression: str) -> bool:
    """Whether the expression names the same topic for every table."""
    return _CONSTANT.fullmatch(expression) is not None


def topic_name(expression: str, schema: str, table: str) -> str:
    """The topic of a table by an expression that was checked."""
    if is_constant(expression):
        return expression
    name = expression.replace(SCHEMA, _FORBIDDEN.sub("_", schema))
    # A schema named `{table}` adds no placeholder here: its braces were replaced above.
    name = name.replace(TABLE, _FORBIDDEN.sub("_", table))[:NAME_MAX]
    return "_" * len(name) if name in (".", "..") else name
