"""Plans the steps of a DDL at one target: the policy for changes of columns first, then the steps.

A DDL is rendered from the TableInfo of its event (`ddl_plan`). Its SQL is used only if the message has no
header, or if a target that executes SQL holds a table whose TableInfo is not known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tidegate.codec.base import DdlMessage
from tidegate.codec.formats import ddl_header
from tidegate.consumer.applying.set_aside import SetAsideTables
from tidegate.consumer.applying.target import Target
from tidegate.consumer.ddl import ddl_plan, ddl_text_plan, schema_changes
from tidegate.consumer.ddl.ddl_steps import REPEAT, Drop, Nothing, Refuse, Step
from tidegate.consumer.ddl.schema_changes import SchemaChanges
from tidegate.consumer.selecting.selection import Chosen, Selection
from tidegate.consumer.table.timestamp_zone import TimestampZone
from tidegate.errors import Fatal
from tidegate.model.ddl import DdlEvent


class DdlPlanner:
    """Plans DDLs for one target. It changes nothing there, except the count of ignored changes."""

    def __init__(
        self,
        target: Target,
        selection: Selection,
        set_aside: SetAsideTables,
        zone: TimestampZone,
        policy: SchemaChanges,
    ) -> None:
        self._target, self._selection, self._set_aside = target, selection, set_aside
        self._zone, self._policy = zone, policy

    def stops_at(self, messages: Sequence[DdlMessage]) -> Fatal | None:
        """The error that ends the consumer before these DDLs, if they change columns and the policy is
        `stop`.
        """
        if self._policy is not SchemaChanges.STOP:
            return None
        # A separate selection, because asking it about a DDL moves it on, and these DDLs are not executed
        # yet.
        selection, held = self._selection.apart(), self._target.definitions.keys()
        for event, message in in_order(messages):
            chosen = selection.ddl(event, message, held)
            if chosen is None or chosen.refusal is not None or self._target.has_done(chosen.message):
                continue
            # It will not be executed, so it changes no columns at the target.
            if self._set_aside.concerns(chosen, by_text=self._target.replays_sql):
                continue
            if chosen.event is not None:
                if words := schema_changes.changed_columns(chosen.event):
                    return schema_changes.stopped(message, words)
            elif schema_changes.changed_in_text(chosen.message):
                return schema_changes.stopped(message, ())
        return None

    def under_policy(self, chosen: Chosen, message: DdlMessage) -> Chosen:
        """The DDL as the policy lets it be: under `ignore` without its changes of columns.

        Fatal if the target cannot keep its columns, or if the message does not say what it changes.
        """
        if self._policy is not SchemaChanges.IGNORE or chosen.refusal is not None:
            return chosen
        event, by_sql = chosen.event, self._target.replays_sql
        if event is None or (by_sql and self._was_adopted(event)):
            changes = schema_changes.changed_columns(event) if event is not None else ()
            if changes or (event is None and schema_changes.changed_in_text(chosen.message)):
                raise schema_changes.undescribed(message)
            return chosen
        held = ddl_plan.held_before(event, self._target.definitions)
        kept = schema_changes.kept(event, message, held, typed=by_sql)
        if words := schema_changes.changed_columns(event):
            self._target.stats.ignored.append(f"table {message.schema}.{message.table}: {'; '.join(words)}")
        return replace(chosen, event=kept)

    def steps(self, chosen: Chosen, message: DdlMessage) -> list[Step]:
        """The steps of a chosen DDL: drops, SQL to replay, or a plan from the TableInfo or the text.

        Fatal if the DDL is refused: before its first step, so that nothing of it is executed.
        """
        steps = self._planned(chosen)
        for step in steps:
            if isinstance(step, Refuse):
                name = f"{message.schema}.{message.table}".strip(".")
                raise Fatal(
                    "a DDL cannot be replayed at the target",
                    where=f"{name} at ts {message.ts}: {message.query[:200]}",
                    why=step.why,
                    fix=REPEAT,
                )
        return steps

    def _planned(self, chosen: Chosen) -> list[Step]:
        event, message = chosen.event, chosen.message
        if chosen.refusal is not None:
            # Only now, when the DDL is due: if it was done by hand and given to --skip-ddl, it is never
            # planned.
            raise chosen.refusal
        if chosen.drops is not None:
            return [Drop(*name) for name in chosen.drops] or [Nothing("the schema has no tables here")]
        held = self._target.definitions.values()
        if self._target.replays_sql and (event is None or self._was_adopted(event)):
            if chosen.sql_refusal is not None:
                raise chosen.sql_refusal
            # Defaults such as NOW() and TIMESTAMP literals depend on the session's zone, so the statement
            # runs in upstream's.
            zone = (event.time_zone if event is not None else "") or self._zone.of_sql(message)
            stated = [replace(message, query=query) for query in chosen.queries]
            return [step for one in stated for step in ddl_text_plan.plan_replay(one, zone)]
        if event is not None:
            return ddl_plan.plan(event, held, self._target.dropped())
        return ddl_text_plan.plan_without_header(message, held)

    def _was_adopted(self, event: DdlEvent) -> bool:
        """Whether the table's definition was read from the target, and not made from a TableInfo."""
        held = self._target.definition((event.old_schema, event.old_table))
        return held is not None and held.info is None


def in_order(messages: Sequence[DdlMessage]) -> list[tuple[DdlEvent | None, DdlMessage]]:
    """DDLs of one ts with their decoded headers, in the order of their job."""
    events = [(ddl_header.decode(m.header), m) if m.header is not None else (None, m) for m in messages]
    return sorted(events, key=lambda pair: pair[0].seq if pair[0] is not None else 0)
