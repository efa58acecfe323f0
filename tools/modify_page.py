"""The conversions of MODIFY COLUMN in docs/ddl-at-targets.md: one rule for every pair of types.

python -m tools.modify_page     writes the part between the marks; a test fails if it is out of date

The pairs that TiDB allows follow TiDB's own rule (`pkg/types/field_type.go`, `checkTypeChangeSupported`). The pairs
that the consumer refuses come from the code (`tidb.cast.refusal`). The conversion of values is described here in
words, and `tests/tidb/test_modify_pairs.py` checks it for every pair.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC
from pathlib import Path
from typing import Final

from tidegate.model.schema import Column
from tidegate.tidb.cast import refusal
from tidegate.tidb.table_info import every_column

PAGE: Final = Path(__file__).parents[1] / "docs" / "ddl-at-targets.md"
BEGIN: Final = "<!-- Written by tools/modify_page.py from here on: change that, not this part. -->\n"
END: Final = "<!-- Written by tools/modify_page.py up to here. -->\n"

INTEGERS: Final = ("TINYINT", "SMALLINT", "MEDIUMINT", "INT", "BIGINT")
REALS: Final = ("FLOAT", "DOUBLE")
MOMENTS: Final = ("DATE", "DATETIME", "TIMESTAMP")
CHARS: Final = ("CHAR", "VARCHAR", "TINYTEXT", "TEXT", "MEDIUMTEXT", "LONGTEXT")
BINARIES: Final = ("BINARY", "VARBINARY", "TINYBLOB", "BLOB", "MEDIUMBLOB", "LONGBLOB")
TEXTS: Final = (*CHARS, *BINARIES)
NAMED: Final = ("ENUM", "SET")
TYPES: Final = (
    *INTEGERS, "DECIMAL", *REALS, "BIT", "YEAR", *MOMENTS, "TIME", *TEXTS, *NAMED, "JSON", "VECTOR"
)  # fmt: skip
"""Every column type of TiDB, with and without UNSIGNED."""
NUMBERS: Final = (*INTEGERS, "DECIMAL", *REALS)

_CODES: Final = {
    "TINYINT": 1, "SMALLINT": 2, "MEDIUMINT": 9, "INT": 3, "BIGINT": 8, "DECIMAL": 246, "FLOAT": 4,
    "DOUBLE": 5, "BIT": 16, "YEAR": 13, "DATE": 10, "DATETIME": 12, "TIMESTAMP": 7, "TIME": 11, "CHAR": 254,
    "VARCHAR": 15, "TINYTEXT": 249, "TEXT": 252, "MEDIUMTEXT": 250, "LONGTEXT": 251, "BINARY": 254,
    "VARBINARY": 15, "TINYBLOB": 249, "BLOB": 252, "MEDIUMBLOB": 250, "LONGBLOB": 251, "ENUM": 247,
    "SET": 248, "JSON": 245, "VECTOR": 225,
}  # fmt: skip
_SHORT: Final = {
    "TINYINT": "TINY", "SMALLINT": "SMALL", "MEDIUMINT": "MEDIUM", "BIGINT": "BIG", "DECIMAL": "DEC",
    "DATETIME": "DTIME", "TIMESTAMP": "STAMP", "MEDIUMTEXT": "MTEXT", "LONGTEXT": "LTEXT", "TINYTEXT": "TTEXT",
    "BINARY": "BIN", "VARBINARY": "VBIN", "TINYBLOB": "TBLOB", "MEDIUMBLOB": "MBLOB", "LONGBLOB": "LBLOB",
    "VARCHAR": "VCHAR", "VECTOR": "VEC",
}  # fmt: skip
REFUSED_BY_TIDB: Final = "."
REFUSED_HERE: Final = "**R**"


@dataclass(frozen=True, slots=True)
class Rule:
    """How values of some types are converted to some other types."""

    before: tuple[str, ...]
    after: tuple[str, ...]
    result: str


RULES: Final = (
    Rule((*INTEGERS, "YEAR"), INTEGERS, "the nearest bound; below zero in UNSIGNED: 0"),
    Rule((*INTEGERS, "YEAR"), ("DECIMAL", *REALS), "the same number, or the nearest that fits"),
    Rule((*INTEGERS, "YEAR"), TEXTS, "its digits, cut to the length"),
    Rule(
        (*INTEGERS, "YEAR"),
        (*MOMENTS, "TIME"),
        "the digits as a date or time: `20240229`, `101112`; none such: zero",
    ),
    Rule((*INTEGERS, "YEAR"), ("YEAR",), "1 to 69 become 2001 to 2069, 70 to 99 become 1970 to 1999"),
    Rule(INTEGERS, ("BIT",), "the same number; the greatest if too wide"),
    Rule(INTEGERS, NAMED, "by index, by mask; none such: empty"),
    Rule((*INTEGERS, "YEAR"), ("JSON",), "a JSON number"),
    Rule(
        ("DECIMAL",),
        (*INTEGERS, "YEAR", "BIT", "DECIMAL"),
        "rounded half away from zero, then as from an integer",
    ),
    Rule(("DECIMAL",), (*REALS, *TEXTS, "JSON"), "the same number; in JSON a double"),
    Rule(("DECIMAL", *REALS), ("TIME",), "its digits: `101112.5`"),
    Rule(REALS, (*INTEGERS, "YEAR", "BIT"), "rounded half to even"),
    Rule(REALS, ("DECIMAL",), "its shortest decimal digits, rounded half away from zero"),
    Rule(REALS, REALS, "a narrower FLOAT: the nearest; `(M,D)`: rounded to D digits; the nearest bound"),
    Rule(REALS, (*TEXTS, "JSON"), "digits without an exponent; in JSON a double"),
    Rule(
        TEXTS,
        (*NUMBERS, "YEAR"),
        "the number that the text begins with, 0 for none, rounded half away from zero",
    ),
    Rule(
        CHARS,
        CHARS,
        "cut to characters (TEXT: bytes); CHAR loses spaces at the end; another charset: the same characters",
    ),
    Rule(CHARS, BINARIES, "the bytes of the charset, cut to the length; BINARY is filled with zeros"),
    Rule(BINARIES, CHARS, "the characters of the charset's bytes, cut as text is"),
    Rule(BINARIES, BINARIES, "cut to the length; BINARY is filled with zeros"),
    Rule(TEXTS, (*MOMENTS, "TIME"), "in all the forms that TiDB accepts; otherwise zero"),
    Rule(TEXTS, NAMED, "by name under the column's collation, otherwise as a number, otherwise empty"),
    Rule((*TEXTS, *NAMED), ("JSON",), "the text, or the name, parsed"),
    Rule(
        MOMENTS,
        MOMENTS,
        "the time cut (DATE), rounded half up to fewer digits, or zero; TIMESTAMP in the session's time zone",
    ),
    Rule(MOMENTS, ("TIME", "YEAR"), "the time of day, the year"),
    Rule(MOMENTS, NUMBERS, "its digits: `20240229101112`; in a signed integer rounded to the second before"),
    Rule((*MOMENTS, "TIME"), (*TEXTS, "JSON"), "as it is shown; in JSON with six digits of the second"),
    Rule(("TIME",), ("TIME",), "rounded half away from zero; more digits are filled with zeros"),
    Rule(("TIME",), (*NUMBERS, "YEAR"), "its digits: `101112`"),
    Rule(NAMED, (*NUMBERS, "YEAR", "BIT"), "index, mask"),
    Rule(NAMED, (*TEXTS, *NAMED), "by name"),
    Rule(("BIT",), (*NUMBERS, "YEAR", "BIT", *TEXTS), "its number"),
    Rule(("BIT",), ("JSON",), "a JSON string of its bytes; refused at a row where they are not UTF-8"),
    Rule(("JSON",), (*NUMBERS, "YEAR"), "a number as it is, true 1, a string as text, all others 0"),
    Rule(("JSON",), TEXTS, "its canonical text, cut to the length"),
    Rule(("JSON",), (*MOMENTS, "TIME"), "the string in it as text"),
    Rule(("JSON",), ("JSON",), "the same"),
    Rule(("VECTOR",), ("VECTOR",), "the same: TiDB refuses another number of dimensions at the first row"),
)


def tidb_allows(before: str, after: str) -> bool:
    """Whether TiDB's MODIFY COLUMN allows the change from one type to the other."""
    if before == after:
        return True
    if "VECTOR" in (before, after):
        return False
    timed = (*MOMENTS, "TIME", "YEAR")
    if after == "BIT":
        return before not in (*timed, *TEXTS, "JSON")
    if after in NAMED:
        return before not in (*timed, "DECIMAL", *REALS, "JSON", "BIT")
    if after in MOMENTS:
        return before not in (*NAMED, "BIT", "DECIMAL", *REALS)
    if after == "TIME":
        return before not in (*NAMED, "BIT")
    return True


def column(
    name: str,
    *,
    flen: int = -1,
    decimal: int = -1,
    flag: int = 0,
    elems: tuple[str, ...] = (),
    collate: str = "",
) -> Column:
    """A column of a type, as TiDB's TableInfo describes it."""
    text = name in CHARS or name in NAMED
    described = {
        "Tp": _CODES[name],
        "Flag": flag,
        "Flen": flen,
        "Decimal": decimal,
        "Charset": "utf8mb4" if text else "binary",
        "Collate": collate or ("utf8mb4_bin" if text else "binary"),
        "Elems": list(elems) or None,
    }
    entry = {"id": 1, "name": {"O": "c", "L": "c"}, "offset": 0, "state": 5, "type": described}
    return every_column({"cols": [entry]}, 1)[0]


def rule_of(before: str, after: str) -> int | None:
    """The number of the rule for a pair, from 1. None if TiDB or the consumer refuses the pair."""
    if not tidb_allows(before, after) or refusal(column(before), column(after), UTC):
        return None
    (found,) = [
        number for number, rule in enumerate(RULES, start=1) if before in rule.before and after in rule.after
    ]
    return found


def cell(before: str, after: str) -> str:
    """The text of a pair in the table."""
    number = rule_of(before, after)
    if number is not None:
        return str(number)
    return REFUSED_HERE if tidb_allows(before, after) else REFUSED_BY_TIDB


def part() -> str:
    """The text between the marks."""
    lines = ["| | from | to | result |", "|---|---|---|---|"]
    lines += [
        f"| {number} | {_listed(rule.before)} | {_listed(rule.after)} | {rule.result} |"
        for number, rule in enumerate(RULES, start=1)
    ]
    lines += [
        "",
        f"The rule of every pair, from the left to the top. `{REFUSED_BY_TIDB}`: TiDB refuses the statement. "
        f"{REFUSED_HERE}: the consumer",
        "refuses it, see below. UNSIGNED or not is the same rule, and so is every length, precision or character set.",
        "TiDB keeps the rows, and the column's id, where the new type holds the old values as they are: a wider integer,",
        "a longer text, more digits of the second, elements added at the end. The rule then changes no value; a TIME,",
        "which is text at the target, is written again with its digits.",
        "",
        f"| | {' | '.join(_SHORT.get(name, name) for name in TYPES)} |",
        f"|---|{'---|' * len(TYPES)}",
    ]
    lines += [f"| {name} | {' | '.join(cell(name, after) for after in TYPES)} |" for name in TYPES]
    allowed = sum(tidb_allows(a, b) for a in TYPES for b in TYPES)
    refused = sum(cell(a, b) == REFUSED_HERE for a in TYPES for b in TYPES)
    lines += [
        "",
        f"TiDB allows {allowed} of these {len(TYPES) ** 2} pairs; {refused} of them are refused here.",
    ]
    return "\n".join(lines) + "\n"


_GROUPS: Final = (
    ("integers, DECIMAL, FLOAT, DOUBLE", NUMBERS), ("all text and binary types", TEXTS), ("integers", INTEGERS),
    ("CHAR, VARCHAR, all TEXT", CHARS), ("BINARY, VARBINARY, all BLOB", BINARIES),
)  # fmt: skip


def _listed(names: tuple[str, ...]) -> str:
    rest, said = list(names), []
    for word, group in _GROUPS:
        if all(name in rest for name in group):
            said.append(word)
            rest = [name for name in rest if name not in group]
    return ", ".join([*said, *rest])


def page(text: str) -> str:
    """The page with its generated part updated."""
    head, _, tail = text.partition(BEGIN)
    _, _, tail = tail.partition(END)
    return f"{head}{BEGIN}\n{part()}\n{END}{tail}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
