"""The steps of one RENAME TABLES job: each renames one table, in order.

One job may rename a table more than once, and may reuse a name that an earlier step has freed:
`RENAME TABLE a TO t, b TO a, t TO b` swaps two tables. The TableInfos of the finished job only have the final
names, so the names between them come from other places:

| what | from, in this order |
|---|---|
| old name | the table's new name in an earlier step, the catalogue, the job's arguments, its query |
| new schema | the catalogue by the argument's schema id, the query |
| new table | at the table's last step the TableInfo; else arguments, query, the next step's old name |

Arguments of version 2 are objects. Those of version 1 are parallel lists, and old TiDB does not write the
last ones: old schema ids, new schema ids, new names, table ids, old schema names, old table names. The
catalogue is preferred to the arguments, because these have the old name as the user typed it, and targets
know the name as the table has it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tidegate.errors import Undecodable
from tidegate.tidb import table_info
from tidegate.tidb.ddl_job import DdlJob

Name = tuple[str, str]
"""Schema and table."""

_TOKEN: Final = re.compile(
    r"""(?P<comment>/\*(?!!|T!).*?\*/|--\s[^\n]*|\#[^\n]*)
    |(?P<open>/\*(?:!\d*|T!(?:\[[\w,]*\])?))|(?P<close>\*/)
    |`(?P<quoted>(?:[^`]|``)+)`|(?P<plain>[^\s.,;`/*]+)|(?P<mark>[.,;])""",
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Step:
    """One table gets one new name."""

    table_id: int
    old: Name
    schema_id: int
    new: Name
    info: dict[str, Any]
    """The TableInfo under the new name."""


@dataclass(frozen=True, slots=True)
class _Arguments:
    """One step in the job's arguments. Names that they do not contain are empty."""

    table_id: int
    schema_id: int
    old: Name
    new_table: str


def steps(
    job: DdlJob,
    known: Callable[[int], Name | None],
    schema_name: Callable[[int], str | None],
) -> list[Step]:
    """The steps in order. `known`: a table's name before the job. `schema_name`: the name of a schema id.

    Raises Undecodable if a name is not found anywhere, and KeyError, TypeError, ValueError or IndexError for
    arguments of another form.
    """
    # The order of TableInfos is not the order of steps: a table that is renamed twice has one.
    infos = {info["id"]: info for info in job.table_infos}
    arguments = _arguments(job.args)
    written = names_in(job.query)
    if len(written) != len(arguments):
        written = []  # the query was not parsed completely, so none of its names is used
    now: dict[int, Name] = {}
    found = []
    for at, one in enumerate(arguments):
        text_old, text_new = written[at] if written else (("", ""), ("", ""))
        later = [other for other in arguments[at + 1 :] if other.table_id == one.table_id]
        info = infos[one.table_id]
        old = now.get(one.table_id) or known(one.table_id) or _either(one.old, text_old)
        schema = schema_name(one.schema_id) or text_new[0] or job.schema_name
        if later:
            table = one.new_table or text_new[1] or later[0].old[1]
            info = {**info, "name": {"O": table, "L": table.lower()}}
        else:
            table = table_info.name_of(info)
        if not (table and all(old)):
            raise Undecodable(
                "a step of RENAME TABLES has no name",
                where=f"job {job.id}, step {at + 1}, table id {one.table_id}",
                why=job.query[:200],
            )
        # A later step may rename the same table again; the catalogue still has the name from before the job.
        now[one.table_id] = (schema, table)
        found.append(Step(one.table_id, old, one.schema_id, (schema, table), info))
    return found


def _either(first: Name, second: Name) -> Name:
    return first[0] or second[0], first[1] or second[1]


def _arguments(args: Any) -> list[_Arguments]:
    if isinstance(args, dict):
        return [
            _Arguments(
                int(item["table_id"]),
                int(item["new_schema_id"]),
                (_text(item.get("old_schema_name")), _text(item.get("old_table_name"))),
                _text(item.get("new_table_name")),
            )
            for item in args["rename_table_infos"]
        ]
    new_names, old_schemas, old_tables = (_list(args, at) for at in (2, 4, 5))
    return [
        _Arguments(
            int(table_id),
            int(schema_id),
            (_at(old_schemas, at), _at(old_tables, at)),
            _at(new_names, at),
        )
        for at, (table_id, schema_id) in enumerate(zip(args[3], args[1], strict=True))
    ]


def _list(args: Sequence[Any], at: int) -> Sequence[Any]:
    found = args[at] if len(args) > at else None
    return found if isinstance(found, list) else ()


def _at(names: Sequence[Any], at: int) -> str:
    return _text(names[at]) if at < len(names) else ""


def _text(name: Any) -> str:
    """The text of a TiDB name object (`O` as written, `L` in lower case) or of a string. Empty if missing."""
    return str(name.get("O") or "") if isinstance(name, dict) else str(name or "")


def names_in(query: str) -> list[tuple[Name, Name]]:
    """(old, new) of each step of a RENAME TABLE statement. Empty for other statements. No schema: ''."""
    tokens = _tokens(query)
    if [word.lower() for word, _ in tokens[:2]] not in (["rename", "table"], ["rename", "tables"]):
        return []
    found, at = [], 2
    while at < len(tokens):
        old, at = _name(tokens, at)
        if old is None or at >= len(tokens) or not _is_to(tokens[at]):
            return []
        new, at = _name(tokens, at + 1)
        if new is None:
            return []
        found.append((old, new))
        if at < len(tokens) and tokens[at] != (",", False):
            # Something else follows, so the statement was not understood. Names that were guessed from a part
            # of it could be wrong.
            return found if tokens[at:] == [(";", False)] else []
        at += 1
    return found


def _is_to(token: tuple[str, bool]) -> bool:
    text, quoted = token
    return text.lower() == "to" and not quoted


def _tokens(query: str) -> list[tuple[str, bool]]:
    """(text, whether it was in backticks), without comments. Text in executable comments is included."""
    return [
        (match["quoted"].replace("``", "`"), True)
        if match["quoted"]
        else (match["plain"] or match["mark"], False)
        for match in _TOKEN.finditer(query)
        if match["quoted"] or match["plain"] or match["mark"]
    ]


def _name(tokens: Sequence[tuple[str, bool]], at: int) -> tuple[Name | None, int]:
    """The name that begins at a token, and the index after it."""
    parts: list[str] = []
    while at < len(tokens):
        text, quoted = tokens[at]
        if not quoted and text in (".", ",", ";"):
            return None, at
        parts.append(text)
        at += 1
        if at >= len(tokens) or tokens[at] != (".", False):
            break
        at += 1
    if len(parts) not in (1, 2):
        return None, at
    return (parts[0] if len(parts) == 2 else "", parts[-1]), at
