"""Which tables and columns of the topic are applied, and under which names: the user's rules. Pure.

    include, exclude   table filter rules as in TiCDC: `shop.*`, `!shop.tmp_?`, `/^db[0-9]+$/.*`
    route              `shop.*=copy.*`: a `*` at the target repeats what the `*` at the source matched
    drop-column        `shop.users.phone`, `*.*.secret_*`
    soft-delete        `shop.orders.deleted_at`: the tables, and a column that says when a row was deleted
    partition-by       `shop.orders:region,day(at)`: how the files of a table are divided (`partition_spec`)
    schema-changes     what happens when columns change upstream (`schema_changes`)

`table_rules` says what they mean for a table, `selection` applies them to rows and DDLs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from tidegate.consumer.ddl.schema_changes import OPTION, SchemaChanges
from tidegate.consumer.table.partition_spec import OPTION as PARTITION_BY
from tidegate.consumer.table.partition_spec import PartitionRule
from tidegate.consumer.table.soft_delete import SoftDelete
from tidegate.errors import Fatal, InvalidInput
from tidegate.tidb.table_filter import ColumnsOfTables, TableFilter, is_system_schema, lower

Name = tuple[str, str]
"""Schema and table."""

NAME_MAX: Final = 64
"""Characters of a schema's or table's name, in TiDB and in databases."""
OWN_SCHEMAS: Final = frozenset({"tidegate", "_tidegate"})
"""Schemas in which targets store the consumer's own tables and files."""
SOFT_DELETE: Final = "--soft-delete"
"""The option's name in a stored position."""
IGNORING: Final = f"{OPTION} {SchemaChanges.IGNORE}"
"""The option in a stored position."""
_PART: Final = r"(?:`((?:[^`]|``)+)`|([\w$*]+))"
_ROUTE: Final = re.compile(rf"\s*{_PART}\.{_PART}\s*=\s*{_PART}\.{_PART}\s*")


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules as the user gives them. Without any, every table and column is applied under its own name."""

    include: tuple[str, ...] = ()
    """Tables that are applied; empty: all. The last rule that matches a table wins."""
    exclude: tuple[str, ...] = ()
    """Tables that are never applied, even if `include` matches them."""
    route: tuple[str, ...] = ()
    """The first rule that matches a table gives its name at the target."""
    drop_column: tuple[str, ...] = ()
    soft_delete: tuple[str, ...] = ()
    """The first rule that matches a table gives its column; other tables lose their deleted rows."""
    schema_changes: SchemaChanges = SchemaChanges.EVOLVE
    """Only `ignore` must stay the same for a target: the other policies lead to the same tables."""
    partition_by: tuple[str, ...] = ()
    """The first rule that matches a table gives its partition spec. Rules for tables that the target does not
    have yet may be added at any time."""

    @property
    def given(self) -> tuple[str, ...]:
        """The rules as options of the command line, in the form that the position stores."""
        ignoring = (IGNORING,) if self.schema_changes is SchemaChanges.IGNORE else ()
        return (*self.selecting, *ignoring, *(f"{PARTITION_BY} {rule}" for rule in self.partition_by))

    @property
    def selecting(self) -> tuple[str, ...]:
        """The part of `given` that selects tables and columns by name."""
        options = (
            ("--include", self.include),
            ("--exclude", self.exclude),
            ("--route", self.route),
            ("--drop-column", self.drop_column),
            (SOFT_DELETE, self.soft_delete),
        )
        return tuple(f"{option} {rule}" for option, rules in options for rule in rules)

    def tables(self) -> TableFilter | None:
        """The tables that are applied; None: all. InvalidInput for a rule that cannot be parsed."""
        # None, and not a filter that matches all: then no name has to be matched for each table and each
        # round.
        if not self.include and not self.exclude:
            return None
        for rule in self.exclude:
            if rule.lstrip().startswith("!"):
                raise InvalidInput(
                    f"the rule {rule!r} of --exclude begins with '!'",
                    why="--exclude leaves out what its rule names, so that it is not clear what is meant",
                    fix=f"write --include {rule} or --exclude {rule.lstrip().removeprefix('!')}",
                )
        # Exclusions come last, because the last rule that matches wins: so no --include can bring a table
        # back.
        return TableFilter([*(self.include or ("*.*",)), *(f"!{rule.strip()}" for rule in self.exclude)])

    def columns(self) -> ColumnsOfTables:
        """The columns that are left out; InvalidInput for a rule that cannot be parsed."""
        return ColumnsOfTables(self.drop_column)

    def soft_deletes(self) -> tuple[SoftDelete, ...]:
        """The rules in the order in which they are tried; InvalidInput for one that cannot be parsed."""
        return tuple(map(SoftDelete.of, self.soft_delete))

    def partition_rules(self) -> tuple[PartitionRule, ...]:
        """The rules in the order in which they are tried; InvalidInput for one that cannot be parsed."""
        return tuple(map(PartitionRule.of, self.partition_by))

    def routes(self) -> tuple[Route, ...]:
        """The rules in the order in which they are tried; InvalidInput for one that cannot be parsed."""
        return tuple(map(Route.of, self.route))


NO_RULES: Final = Rules()


@dataclass(frozen=True, slots=True)
class NamePattern:
    """A pattern for one name, with at most one `*`."""

    before: str
    after: str = ""
    star: bool = False

    def taken(self, name: str) -> str | None:
        """The text that `*` matches in a name, empty if there is no `*`; None: the name does not match."""
        if not self.star:
            return "" if lower(name) == lower(self.before) else None
        end = len(name) - len(self.after)
        # The two ends must not share characters of the name: `aa*a` does not match `aa`.
        fits = len(self.before) <= end and (
            (lower(name[: len(self.before)]), lower(name[end:])) == (lower(self.before), lower(self.after))
        )
        return name[len(self.before) : end] if fits else None

    def filled(self, taken: str) -> str:
        """The name with `taken` in the place of the `*`."""
        return f"{self.before}{taken}{self.after}" if self.star else self.before

    @property
    def any_name(self) -> bool:
        """Whether every name matches."""
        return self.star and not self.before and not self.after


@dataclass(frozen=True, slots=True)
class Route:
    """Maps tables of the source to names at the target."""

    text: str
    schema: NamePattern
    table: NamePattern
    to_schema: NamePattern
    to_table: NamePattern

    @classmethod
    def of(cls, text: str) -> Route:
        """Parse a rule; InvalidInput if it is malformed."""
        found = _ROUTE.fullmatch(text)
        if found is None:
            raise _unreadable(text, "it is not two names of tables with '=' between them")
        parts = found.groups()
        names = [_pattern(text, *parts[at : at + 2]) for at in range(0, len(parts), 2)]
        route = cls(text, *names)
        for source, target in ((route.schema, route.to_schema), (route.table, route.to_table)):
            if target.star and not source.star:
                raise _unreadable(text, "a '*' at the target needs one in the same name of the source")
        # With a `*` the schema is known only for each table, so `routed` checks it then.
        if not route.to_schema.star and (why := reserved(route.to_schema.before)):
            raise _unreadable(text, why)
        return route

    def target(self, name: Name) -> Name | None:
        """The name of a table at the target; None: the route does not match it."""
        schema, table = self.schema.taken(name[0]), self.table.taken(name[1])
        if schema is None or table is None:
            return None
        return self.to_schema.filled(schema), self.to_table.filled(table)


def routed(name: Name, routes: Iterable[Route]) -> Name:
    """A table's name at the target. Fatal for a name that no target may have."""
    to = next((to for route in routes if (to := route.target(name)) is not None), name)
    why = reserved(to[0]) or next((_too_long(part) for part in to if len(part) > NAME_MAX), "")
    # A table that keeps its name is left to the target, which refuses the names that it cannot have.
    if to != name and why:
        raise Fatal(
            "a route leads to a name that no table at the target may have",
            where=f"table {'.'.join(name)}, to {'.'.join(to)}",
            why=why,
            fix="start a new target with another --route for the table, or --exclude it",
        )
    return to


def routed_schemas(schema: str, routes: Iterable[Route]) -> list[str]:
    """The schemas at the target to which tables of one schema may go."""
    found = []
    for route in routes:
        if (taken := route.schema.taken(schema)) is None:
            continue
        found.append(route.to_schema.filled(taken))
        # Such a route takes every table that is left of the schema, so the rules after it get none.
        if route.table.any_name:
            return list(dict.fromkeys(found))
    return list(dict.fromkeys([*found, schema]))


def reserved(schema: str) -> str:
    """Why no table may go to a schema, in words; empty if it may."""
    if lower(schema) in OWN_SCHEMAS:
        return f"the consumer keeps its own tables and files under {schema}"
    return f"{schema} is the server's own schema" if is_system_schema(schema) else ""


def _too_long(name: str) -> str:
    return f"the name has {len(name)} characters, and may have {NAME_MAX}"


def _pattern(text: str, quoted: str | None, plain: str | None) -> NamePattern:
    if quoted is not None:
        return NamePattern(quoted.replace("``", "`"))
    before, star, after = (plain or "").partition("*")
    if "*" in after:
        raise _unreadable(text, "a name has more than one '*'")
    return NamePattern(before, after, bool(star))


def _unreadable(text: str, why: str) -> InvalidInput:
    return InvalidInput(
        f"the route {text!r} cannot be read",
        why=why,
        fix="write schema.table=schema.table, for example 'shop.*=copy.*' or 'shop.orders=old.`my.orders`'",
    )
