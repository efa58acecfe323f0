"""Optimizer hints of a query, as TiDB writes them. Like TiDB, leaves out hints that TiDB does not know."""

from __future__ import annotations

import re
from typing import Final

from tidegate.tidb.sql.cursor import bare_string, int_of, quoted

_TABLES_TEXT: Final = """
    TIDB_HJ TIDB_SMJ TIDB_INLJ HASH_JOIN HASH_JOIN_BUILD HASH_JOIN_PROBE MERGE_JOIN INL_JOIN BROADCAST_JOIN
    SHUFFLE_JOIN INL_HASH_JOIN INL_MERGE_JOIN LEADING NO_HASH_JOIN NO_MERGE_JOIN NO_INDEX_JOIN
    NO_INDEX_HASH_JOIN NO_INDEX_MERGE_JOIN
"""
_TABLES: Final = frozenset(_TABLES_TEXT.split())
"""Hints about tables."""

_INDEXES: Final = frozenset(
    ("USE_INDEX", "IGNORE_INDEX", "USE_INDEX_MERGE", "FORCE_INDEX", "ORDER_INDEX", "NO_ORDER_INDEX")
)
"""Hints about a table and its indexes."""

_BARE_TEXT: Final = """
    MPP_1PHASE_AGG MPP_2PHASE_AGG HASH_AGG STREAM_AGG AGG_TO_COP READ_CONSISTENT_REPLICA NO_INDEX_MERGE
    IGNORE_PLAN_CACHE LIMIT_TO_COP STRAIGHT_JOIN MERGE NO_DECORRELATE SEMI_JOIN_REWRITE USE_PLAN_CACHE
"""
_BARE: Final = frozenset(_BARE_TEXT.split())
"""Hints that have no argument except the query block."""

_HINT: Final = re.compile(r"[\s,]*([A-Za-z_0-9]+)\s*\(([^()]*(?:\([^()]*\)[^()]*)*)\)")
_WORD: Final = re.compile(r"`[^`]*(?:``[^`]*)*`|[0-9A-Za-z_$\u0080-\U0010ffff]+|[@.,()\[\]]")
_SETTING: Final = re.compile(r"([0-9A-Za-z_$]+)\s*=\s*(?:'([^'\\]*)'|\"([^\"\\]*)\"|([0-9A-Za-z_$.+-]+))")
_MOMENTS: Final = re.compile(r"'([^'\\]*)'\s*,?\s*'([^'\\]*)'")
_NUMBER: Final = re.compile(r"[0-9]+")


def written_hints(text: str) -> str:
    """The hints of a comment `/*+ ... */`."""
    found = []
    at = 0
    while hint := _HINT.match(text, at):
        at = hint.end()
        if (one := _written(hint[1].upper(), hint[2])) is not None:
            found.append(one)
    return " ".join(found)


def _written(name: str, arguments: str) -> str | None:
    words = _WORD.findall(arguments)
    block = ""
    if words[:1] == ["@"] and len(words) > 1:
        block, words = f"@{_name(words[1])}", words[2:]
    if name in _BARE:
        return f"{name}({block})"
    lead = f"{block} " if block else ""
    if name == "QB_NAME" and len(words) == 1:
        return f"QB_NAME({_name(words[0])})"
    if name in ("MAX_EXECUTION_TIME", "NTH_PLAN") and (number := _number(words[-1:])) is not None:
        return f"{name}({lead}{number})"
    if name == "MEMORY_QUOTA" and len(words) == 2 and (number := _number(words[:1])) is not None:
        return f"MEMORY_QUOTA({lead}{number << (10 if words[1].upper() == 'GB' else 0)} MB)"
    if name == "SET_VAR" and (setting := _SETTING.fullmatch(arguments.strip())):
        value = next(text for text in setting.groups()[1:] if text is not None)
        return f"SET_VAR({setting[1]} = {bare_string(value)})"
    if name == "TIME_RANGE" and (moments := _MOMENTS.fullmatch(arguments.strip())):
        return f"TIME_RANGE({', '.join(bare_string(moment) for moment in moments.groups())})"
    if name == "RESOURCE_GROUP" and len(words) == 1:
        return f"RESOURCE_GROUP({_name(words[0])})"
    if name == "READ_FROM_STORAGE":
        return _storages(lead, words)
    if name in ("USE_TOJA", "USE_CASCADES") and words:
        return f"{name}({lead}{words[-1].upper()})"
    if name in _TABLES:
        tables = _tables(words)
        return f"{name}({lead}{', '.join(tables)})" if tables is not None else None
    if name in _INDEXES:
        return _index_hint(name, lead, words)
    return None


def _number(words: list[str]) -> int | None:
    return int_of(words[0]) if words and _NUMBER.fullmatch(words[0]) else None


def _storages(lead: str, words: list[str]) -> str | None:
    """One hint per named engine, because TiDB splits them in this way."""
    found, at = [], 0
    while at < len(words):
        if words[at + 1 : at + 2] != ["["]:
            return None
        end = next((place for place in range(at + 2, len(words)) if words[place] == "]"), at)
        tables = _tables(words[at + 2 : end])
        if not tables:
            return None
        found.append(f"READ_FROM_STORAGE({lead}{words[at].upper()}[{', '.join(tables)}])")
        at = end + 2 if words[end + 1 : end + 2] == [","] else end + 1
    return " ".join(found) if found else None


def _index_hint(name: str, lead: str, words: list[str]) -> str | None:
    end = 1
    while end < len(words) and words[end] in ("@", ".") and end + 1 < len(words):
        end += 2
    end = _after_partitions(words, end)
    table = _tables(words[:end])
    if not table:
        return None
    indexes = ", ".join(_name(word) for word in words[end:] if word != ",")
    return f"{name}({lead}{table[0]} {indexes})"


def _tables(words: list[str]) -> list[str] | None:
    """Tables such as `d.t@sel_1 PARTITION(p0)`, separated by commas; None for anything else."""
    found: list[str] = []
    part, at = "", 0
    while at < len(words):
        word, end = words[at], _after_partitions(words, at)
        if word == ",":
            found.append(part)
            part = ""
        elif part and end > at:
            names = (_name(one) for one in words[at + 2 : end - 1] if one != ",")
            part += f" PARTITION({', '.join(names)})"
        elif word in "()[]":
            return None
        else:
            part += word if word in "@." else _name(word)
        at = max(end, at + 1)
    return [*found, part] if part else found


def _after_partitions(words: list[str], at: int) -> int:
    """The end of `PARTITION(p0, p1)` if it begins at `at`, otherwise `at`."""
    if [word.upper() for word in words[at : at + 2]] != ["PARTITION", "("] or ")" not in words[at:]:
        return at
    return words.index(")", at) + 1


def _name(word: str) -> str:
    return quoted(word[1:-1].replace("``", "`") if word.startswith("`") else word)
