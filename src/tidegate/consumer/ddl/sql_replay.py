"""Turns a DDL that is known only by its SQL into statements for a database that is not TiDB. Pure.

TiCDC writes a DDL as TiDB's parser restores it; `tidb.sql` restores other texts. The restored text is
split into its kind, the tables it names and the rest, and loses what other databases do not know or do
differently:

| in TiDB's text | here |
|---|---|
| special comments: AUTO_RANDOM, CLUSTERED, TTL, placement, regions | removed |
| CHECK constraints, which TiDB by default reads and does not enforce | removed |
| foreign keys | removed: rows are the same without them, and they would make other DDLs fail |
| CHARACTER SET without COLLATE | gets the collation that TiDB uses |
| ENGINE, which TiDB reads and ignores; VISIBLE, INVISIBLE, ALGORITHM, LOCK | removed |
| vector and columnar indexes, TiFlash, CACHE, STATS_OPTIONS | removed |

Nothing else is changed: the target decides about the rest, and the user sees its errors. `sql_parts` finds
what is removed.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from typing import Final
from zoneinfo import ZoneInfo

from tidegate.consumer.ddl.sql_parts import (
    NO_INDEX,
    closing,
    collated,
    is_exchange,
    is_foreign_key,
    is_left_out,
    parts,
    without_checks,
    without_engine,
)
from tidegate.tidb.sql.lexer import ParseError, SqlToken, TokenKind, tokens
from tidegate.tidb.sql.restore import outgoing, split

Name = tuple[str, str]
"""Schema and table."""


@dataclass(frozen=True, slots=True)
class CreateSchema:
    """CREATE DATABASE; `options` is the text after the name."""

    schema: str
    options: str


@dataclass(frozen=True, slots=True)
class DropSchema:
    """DROP DATABASE, with all its tables."""

    schema: str


@dataclass(frozen=True, slots=True)
class CreateTable:
    """CREATE TABLE; `body` is the text after the name. `like`: the table whose columns it copies instead."""

    name: Name
    body: str
    like: Name | None = None


@dataclass(frozen=True, slots=True)
class DropTables:
    """DROP TABLE. TiCDC names one table in each message; a text may name several."""

    names: tuple[Name, ...]


@dataclass(frozen=True, slots=True)
class Truncate:
    """TRUNCATE TABLE: removes all rows."""

    name: Name


@dataclass(frozen=True, slots=True)
class RenameTables:
    """Pairs (old, new), in the statement's order: a later pair may use a name that an earlier one freed."""

    pairs: tuple[tuple[Name, Name], ...]


@dataclass(frozen=True, slots=True)
class AlterTable:
    """ALTER TABLE; `changes` is the text after the table's name; empty: the table is only renamed."""

    name: Name
    changes: str
    renamed: Name | None = None


@dataclass(frozen=True, slots=True)
class ExchangePartition:
    """ALTER TABLE .. EXCHANGE PARTITION: the rows of a partition and all rows of `other` change places."""

    name: Name
    partition: str
    other: Name
    validated: bool = True
    """Whether TiDB has checked that each row of `other` belongs to the partition."""


@dataclass(frozen=True, slots=True)
class Ignored:
    """A statement that changes neither rows nor columns."""

    why: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """A statement that cannot be run on another database; its tables are not known."""

    why: str


Replayed = (
    CreateSchema
    | DropSchema
    | CreateTable
    | DropTables
    | Truncate
    | RenameTables
    | AlterTable
    | ExchangePartition
)
Statement = Replayed | Ignored | Unknown

_COMMENT: Final = re.compile(r"('(?:[^'\\]|\\.|'')*'|`(?:[^`]|``)*`)|/\*.*?\*/", re.DOTALL)


def read(query: str, schema: str) -> Statement:
    """Parse a DDL's text; `schema`: that of tables that are named without one."""
    try:
        said = [text for text in split(query) if text]
        if not said:
            return Ignored("it is about the placement of data in TiKV")
        # A message is about one job of TiDB, and each job is one statement. Which of several it was is not
        # known.
        if len(said) > 1:
            return Unknown("it holds several statements")
        # Texts and quoted names are matched first and kept, so that a comment's signs inside them stay.
        text = _COMMENT.sub(lambda found: found[1] or " ", outgoing(query).text).strip()
        return (
            _StatementReader(text, schema).statement()
            if text
            else Ignored("only TiDB knows what it is about")
        )
    except ParseError as error:
        return Unknown(f"its text cannot be read: {error.why or error.what}")


def text_of(statement: Replayed) -> str:
    """The statement as SQL, every name in backquotes and with its schema; `read` parses it to the same."""
    match statement:
        case CreateSchema(schema, options):
            return f"CREATE DATABASE {_quoted(schema)} {options}".strip()
        case DropSchema(schema):
            return f"DROP DATABASE {_quoted(schema)}"
        case CreateTable(name, body, like):
            return f"CREATE TABLE {_qualified(name)} " + (
                body if like is None else f"LIKE {_qualified(like)}"
            )
        case DropTables(names):
            return f"DROP TABLE {', '.join(map(_qualified, names))}"
        case Truncate(name):
            return f"TRUNCATE TABLE {_qualified(name)}"
        case RenameTables(pairs):
            return f"RENAME TABLE {', '.join(' TO '.join(map(_qualified, pair)) for pair in pairs)}"
        case AlterTable(name, changes, renamed):
            moved = f"RENAME AS {_qualified(renamed)}" if renamed is not None else ""
            return f"ALTER TABLE {_qualified(name)} {', '.join(filter(None, (changes, moved)))}".strip()
        case ExchangePartition(name, partition, other, validated):
            exchange = f"EXCHANGE PARTITION {_quoted(partition)} WITH TABLE {_qualified(other)}"
            return f"ALTER TABLE {_qualified(name)} {exchange}{'' if validated else ' WITHOUT VALIDATION'}"


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _qualified(name: Name) -> str:
    return ".".join(map(_quoted, name))


def tables(statement: Replayed) -> list[Name]:
    """The tables that it names, old names and new ones; none for statements about a database."""
    match statement:
        case CreateSchema() | DropSchema():
            return []
        case CreateTable(name) | Truncate(name):
            return [name]
        case DropTables(names):
            return list(names)
        case RenameTables(pairs):
            return [name for pair in pairs for name in pair]
        case AlterTable(name, _, renamed):
            return [name] if renamed is None else [name, renamed]
        case ExchangePartition(name, _, other):
            return [name, other]


def offset(time_zone: str, ts: int) -> str:
    """The zone of the session that runs a DDL of this ts, as `+08:00`: every server accepts that form.

    `time_zone`: UTC, an IANA name, or seconds east of UTC as `+28800`.
    """
    moment = datetime.fromtimestamp((ts >> 18) / 1000, UTC)
    if time_zone[:1] in ("+", "-"):
        east = timezone(timedelta(seconds=int(time_zone))).utcoffset(moment)
    else:
        east = ZoneInfo(time_zone).utcoffset(moment) or timedelta()
    # Before about 1900 some zones have seconds, which a session's time zone cannot have.
    minutes = round(east.total_seconds() / 60)
    return f"{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02d}:{abs(minutes) % 60:02d}"


class _StatementReader:
    """Parses one restored statement: words in upper case, every name in backquotes, no comments."""

    def __init__(self, text: str, schema: str) -> None:
        self._text, self._schema = text, schema
        self._tokens = tokens(text)
        self._ends = {one.at: after.at for one, after in itertools.pairwise(self._tokens)}
        self._at = 0

    def statement(self) -> Statement:
        first, second = self._key(0), self._key(1)
        match first, second:
            case "CREATE", "DATABASE":
                return self._create_schema()
            case "DROP", "DATABASE":
                self._skip("DROP", "DATABASE", "IF", "EXISTS")
                return DropSchema(self._next().text)
            case "CREATE", "TABLE":
                return self._create_table()
            case "DROP", "TABLE":
                self._skip("DROP", "TABLE", "IF", "EXISTS")
                return DropTables(tuple(self._names()))
            case "TRUNCATE", "TABLE":
                self._skip("TRUNCATE", "TABLE")
                return Truncate(self._name())
            case "RENAME", "TABLE":
                return self._rename()
            case "ALTER", "TABLE":
                self._skip("ALTER", "TABLE")
                return self._alter(self._name())
            case "DROP", "INDEX":
                self._skip("DROP", "INDEX", "IF", "EXISTS")
                index = self._next()
                self._skip("ON")
                return AlterTable(self._name(), f"DROP INDEX {self._source(index)}")
            case "CREATE", _ if "INDEX" in (second, self._key(2)):
                return self._create_index()
            case (("RECOVER" | "FLASHBACK"), _):
                # Refused and not ignored: the rows that it changes are in no message.
                return Unknown("it brings rows back, or changes them, without row events")
            case _:
                return Ignored("it concerns no base table")

    def _create_schema(self) -> CreateSchema:
        self._skip("CREATE", "DATABASE", "IF", "NOT", "EXISTS")
        schema, options = self._next().text, self._rest()
        text = self._rendered(options)
        # TiDB's default. Otherwise tables without a charset of their own would get that of the target's
        # server.
        if not any(token.key in ("CHARACTER", "COLLATE") for token in options):
            text = f"{text} DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
        return CreateSchema(schema, text.strip())

    def _create_table(self) -> Statement:
        self._skip("CREATE", "TABLE", "IF", "NOT", "EXISTS")
        name = self._name()
        if self._key(0) == "LIKE":
            self._skip("LIKE")
            return CreateTable(name, "", self._name())
        if self._key(0) != "(":
            return Unknown("the table has no columns of its own")
        body = self._rest()
        end = closing(body, 0)
        elements = [self._rendered(one) for one in parts(body[1:end]) if not is_foreign_key(one)]
        kept = ", ".join(element for element in elements if element)
        return CreateTable(name, f"({kept}) {self._rendered(body[end + 1 :])}".strip())

    def _create_index(self) -> Statement:
        self._skip("CREATE")
        kind = "" if self._key(0) == "INDEX" else self._next().key
        self._skip("INDEX", "IF", "NOT", "EXISTS")
        index = self._source(self._next())
        self._skip("ON")
        name, rest = self._name(), self._rest()
        # TiFlash has no part in the target; other servers do not know the words.
        if kind in NO_INDEX:
            return Ignored("an index that only TiFlash has")
        stop = next((at for at, one in enumerate(rest) if one.key in ("ALGORITHM", "LOCK")), len(rest))
        return AlterTable(
            name, f"ADD {kind} INDEX {index} {self._rendered(rest[:stop])}".replace("  ", " ", 1)
        )

    def _rename(self) -> RenameTables:
        self._skip("RENAME", "TABLE")
        pairs = []
        while True:
            old = self._name()
            self._skip("TO")
            pairs.append((old, self._name()))
            if self._key(0) != ",":
                return RenameTables(tuple(pairs))
            self._next()

    def _alter(self, name: Name) -> Statement:
        """An ALTER TABLE without the changes that are left out; Ignored when none of them remains."""
        changes, renamed, dropped, found = [], None, False, parts(self._rest())
        if any(is_exchange(one) for one in found):
            return self._exchange(name, [one for one in found if not is_left_out(one)])
        for one in found:
            keys = [token.key for token in one[:3]] + ["", "", ""]
            if keys[:2] == ["RENAME", "AS"]:
                renamed = _StatementReader(self._sliced(one[2:]), self._schema)._name()
            elif is_left_out(one) or not (text := self._rendered(one, checks=keys[0] == "ADD")):
                dropped = True
            else:
                changes.append(text)
        if not changes and renamed is None:
            return Ignored(
                "rows and columns are the same without it" if dropped else "only TiDB knows what it is about"
            )
        return AlterTable(name, ", ".join(changes), renamed)

    def _exchange(self, name: Name, found: list[list[SqlToken]]) -> Statement:
        """An EXCHANGE PARTITION, which must be the only change. As one of several it would run as an ALTER,
        and an ALTER is tried on a copy of the table first, which would take the rows of the other table.
        """
        if len(found) != 1:
            return Unknown("it exchanges a partition and changes the table at once")
        (one,) = found
        other = _StatementReader(self._sliced(one[5:]), self._schema)._name()
        # A table may be named so, in backquotes.
        unchecked = one[-2].key == "WITHOUT" and one[-2].kind is not TokenKind.QUOTED
        return ExchangePartition(name, one[2].text, other, validated=not unchecked)

    # --- parts

    def _key(self, ahead: int) -> str:
        at = min(self._at + ahead, len(self._tokens) - 1)
        return self._tokens[at].key

    def _next(self) -> SqlToken:
        token = self._tokens[self._at]
        self._at = min(self._at + 1, len(self._tokens) - 1)
        return token

    def _skip(self, *keys: str) -> None:
        """Skip those of these words that come next, in this order."""
        for key in keys:
            if self._key(0) == key:
                self._next()

    def _name(self) -> Name:
        first = self._next()
        if self._key(0) != ".":
            return self._schema, first.text
        self._next()
        return first.text, self._next().text

    def _names(self) -> Iterable[Name]:
        yield self._name()
        while self._key(0) == ",":
            self._next()
            yield self._name()

    def _rest(self) -> list[SqlToken]:
        found = self._tokens[self._at : -1]
        return found[:-1] if found and found[-1].key == ";" else found

    # --- text

    def _source(self, token: SqlToken) -> str:
        return self._sliced([token])

    def _piece(self, token: SqlToken) -> str:
        """A token as it is written, with the space after it."""
        return self._text[token.at : self._ends[token.at]]

    def _sliced(self, part: Sequence[SqlToken]) -> str:
        return "".join(map(self._piece, part)).strip()

    def _rendered(self, part: Sequence[SqlToken], *, checks: bool = True) -> str:
        """The text of a part without what is removed; `checks`: here CHECK begins a constraint."""
        # MariaDB does not know these words for an index, and they change neither rows nor columns.
        kept = [token for token in without_engine(part) if token.key not in ("VISIBLE", "INVISIBLE")]
        if checks:
            kept = without_checks(kept)
        named = collated(kept)
        pieces = [
            f"{self._piece(token).rstrip()} COLLATE {named[at]} " if at in named else self._piece(token)
            for at, token in enumerate(kept)
        ]
        text = "".join(pieces).strip()
        # A CHECK was all that it would have added.
        return "" if text in ("ADD", "ADD COLUMN") else text
