"""The user's rules about each table, and the source of each table at the target. Pure.

Is a table followed, under which name, without which columns, with which column for deleted rows, and by which
columns are its files divided? Two tables of the source must not meet in one at the target, and DROP DATABASE
must remove those that came from its schema: that is why `sources` is remembered. It is stored with the
position.

Bounds: `sources` has one entry for each table at the target, and none without a route.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from copy import copy

from tidegate.consumer.engine.position import Source
from tidegate.consumer.selecting.rules import NO_RULES, Name, Rules, routed
from tidegate.consumer.selecting.selection_refusals import dotted
from tidegate.consumer.table import partition_spec, soft_delete
from tidegate.consumer.table.partition_spec import Spec
from tidegate.errors import Fatal
from tidegate.tidb.table_filter import lower


class TableRules:
    """The rules of one run, by table of the source, and the sources of the tables at the target."""

    def __init__(self, rules: Rules = NO_RULES, sources: Iterable[Source] = ()) -> None:
        """`sources`: as the position has them. Raises InvalidInput for a rule that cannot be read."""
        self._tables = rules.tables()
        self.columns, self.routes, self.soft_deletes = rules.columns(), rules.routes(), rules.soft_deletes()
        self.partition_rules = rules.partition_rules()
        self._sources: dict[Name, tuple[Name, Name]] = {}
        """For each name at the target in lower case: that name, and the name at the source."""
        self.know(sources)

    def know(self, sources: Iterable[Source]) -> None:
        """Add the sources that a position has."""
        for schema, table, from_schema, from_table in sources:
            self._sources[folded((schema, table))] = (schema, table), (from_schema, from_table)

    @property
    def sources(self) -> tuple[Source, ...]:
        """The sources that the position stores."""
        return tuple((*name, *source) for name, source in sorted(self._sources.values()))

    def forget(self, held: Collection[Name]) -> None:
        """Forget tables that are not among `held`, the tables at the target: their names are free again."""
        self._sources = {key: pair for key, pair in self._sources.items() if pair[0] in held}

    def claim(self, source: Name) -> Name:
        """The name of a followed table at the target. Raises Fatal if another table of the source has it."""
        name = routed(source, self.routes)
        if self.routes:
            _, other = self._sources.setdefault(folded(name), (name, source))
            if folded(other) != folded(source):
                raise Fatal(
                    "two tables of the source would meet in one table at the target",
                    where=f"{dotted(other)} and {dotted(source)}, both to {dotted(name)}",
                    why="their rows could not be distinguished, and a DDL of one would change the other",
                    fix="start a new target with a --route that leads one of them elsewhere, or --exclude it",
                )
            self._sources[folded(name)] = name, source
        return name

    def pair(self, old: Name, new: Name) -> tuple[Name, Name]:
        """The names at the target of a table before and after a DDL.

        A rename upstream may leave the name at the target the same: then the old table frees it first.
        """
        before = self.target(old)
        _, known = self._sources.get(folded(before), (before, None))
        if known is not None and folded(known) == folded(old) and before == self.target(new):
            del self._sources[folded(before)]
        return before, self.claim(new)

    def from_schema(self, schema: str) -> set[Name]:
        """The tables at the target that came from a schema of the source."""
        return {name for name, source in self._sources.values() if lower(source[0]) == lower(schema)}

    def target(self, source: Name) -> Name:
        """The name at the target to which the routes lead, claimed or not."""
        return routed(source, self.routes)

    def follows(self, schema: str, table: str) -> bool:
        """Whether a table is applied."""
        return self._tables is None or self._tables.matches(schema, table)

    def follows_schema(self, schema: str) -> bool:
        """Whether tables of a schema may be applied."""
        return self._tables is None or self._tables.matches_schema(schema)

    def hides(self, source: Name, column: str) -> bool:
        """Whether a column is left out at the target."""
        return self.columns.matches(*source, column)

    def column_for(self, source: Name) -> str:
        """The column that says when a row was deleted; empty: deleted rows are removed."""
        return soft_delete.column_for(*source, self.soft_deletes)

    def spec_for(self, source: Name) -> Spec:
        """The partition spec that a table gets when it is created."""
        return partition_spec.spec_for(*source, self.partition_rules)

    def spec_at(self, name: Name) -> Spec:
        """The partition spec of a table by its name at the target."""
        return self.spec_for(self._sources.get(folded(name), (name, name))[1])

    def apart(self) -> TableRules:
        """A copy that learns independently of this one."""
        other = copy(self)
        other._sources = dict(self._sources)
        return other


def folded(name: Name) -> Name:
    """A name in lower case, to compare with others."""
    return lower(name[0]), lower(name[1])
