"""The time zone of the TIMESTAMP texts on a topic: what the user says, or what DDL headers say."""

from __future__ import annotations

from tidegate.codec.base import DdlMessage
from tidegate.codec.formats import ddl_header
from tidegate.consumer.table.convert import TIMESTAMP
from tidegate.consumer.table.definition import Definition
from tidegate.errors import Fatal


class TimestampZone:
    """The zone in which one topic's TIMESTAMPs are read."""

    def __init__(self, name: str, *, learns: bool) -> None:
        """`learns`: take the zone from DDL headers if `name` is empty; otherwise they must agree with it."""
        self.name, self._learns = name, learns
        """The name is empty while neither the user nor a DDL header has said it."""

    def learn(self, message: DdlMessage) -> None:
        """Take the zone from a DDL's header; Fatal when it contradicts the known zone."""
        stated = ddl_header.timestamp_zone(message.header) if message.header is not None else ""
        if not self._learns or stated in ("", self.name):
            return
        if self.name:
            raise Fatal(
                "the topic's TIMESTAMPs are read in the wrong time zone",
                where=f"{message.schema}.{message.table} at ts {message.ts}",
                why=f"the changefeed writes them in {stated}, and this consumer reads them in {self.name}",
                fix="start a new target without --time-zone, or set the changefeed's time zone back",
            )
        self.name = stated

    def of_table(self, known: Definition) -> str:
        """The zone for a table's rows; Fatal when the table has a TIMESTAMP and the zone is not known."""
        if not self.name:
            needs = [column.name for column in known.columns if column.mysql_type == TIMESTAMP]
            if needs:
                raise _no_zone(f"table {known.name}, column {needs[0]}")
        return self.name or "UTC"

    def of_sql(self, message: DdlMessage) -> str:
        """The zone for a DDL's SQL; Fatal when it has a TIMESTAMP and the zone is not known."""
        if not self.name and "timestamp" in message.query.lower():
            raise _no_zone(f"{message.query[:200]} at ts {message.ts}")
        return self.name or "UTC"


def _no_zone(where: str) -> Fatal:
    return Fatal(
        "the time zone of the topic's TIMESTAMPs is not known",
        where=where,
        why="they are texts in the changefeed's zone, which neither messages nor DDL headers name",
        fix="restart the consumer with --time-zone and the changefeed's zone; TiCDC's default is that of "
        "its server",
    )
