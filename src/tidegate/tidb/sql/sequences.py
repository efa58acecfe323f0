"""Sequences, placement policies and resource groups: statements that are not sent to targets today."""

from __future__ import annotations

from typing import Final

from tidegate.tidb.sql.cursor import Cursor, bare_value, quoted

_PLACEMENT_STRINGS: Final = (
    "PRIMARY_REGION",
    "REGIONS",
    "SCHEDULE",
    "CONSTRAINTS",
    "LEADER_CONSTRAINTS",
    "FOLLOWER_CONSTRAINTS",
    "VOTER_CONSTRAINTS",
    "LEARNER_CONSTRAINTS",
    "SURVIVAL_PREFERENCES",
)
_PLACEMENT_NUMBERS: Final = ("FOLLOWERS", "VOTERS", "LEARNERS")
_NO: Final = {
    "NOCACHE": "NOCACHE",
    "NOCYCLE": "NOCYCLE",
    "NOMINVALUE": "NO MINVALUE",
    "NOMAXVALUE": "NO MAXVALUE",
    "CYCLE": "CYCLE",
}
_NO_WORDS: Final = {
    "CACHE": "NOCACHE",
    "CYCLE": "NOCYCLE",
    "MINVALUE": "NO MINVALUE",
    "MAXVALUE": "NO MAXVALUE",
}


class SequenceOptions:
    """Reads the options of these statements."""

    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor

    def bare_string(self) -> str:
        """A string without its character set."""
        return bare_value(self._cursor.string())

    def sequence_options(self, *, altered: bool = False) -> list[str]:
        """The options of a sequence."""
        found: list[str] = []
        while (option := self._sequence_option(altered)) is not None:
            found.append(option)
        return found

    def _sequence_option(self, altered: bool) -> str | None:
        cursor = self._cursor
        if word := cursor.take_any(*_NO):
            return _NO[word]
        if cursor.take("NO"):
            return _NO_WORDS[cursor.need_any(*_NO_WORDS)]
        if word := cursor.take_any("INCREMENT", "START"):
            cursor.take_any("=", "BY" if word == "INCREMENT" else "WITH")
            return f"{word} {'BY' if word == 'INCREMENT' else 'WITH'} {cursor.signed()}"
        if word := cursor.take_any("MINVALUE", "MAXVALUE", "CACHE"):
            cursor.take("=")
            return f"{word} {cursor.signed()}"
        if altered and cursor.take("RESTART"):
            said = cursor.take_any("=", "WITH")
            more = said or cursor.at_any("+", "-") or cursor.token.text.isdecimal()
            return f"RESTART WITH {cursor.signed()}" if more else "RESTART"
        return None

    def placement_policy(self, verb: str, exists: str) -> str:
        """A placement policy. Its options are left out."""
        cursor = self._cursor
        text = f"/*T![placement] {verb}PLACEMENT POLICY {exists}{quoted(cursor.identifier())}"
        while True:
            cursor.take(",")
            if cursor.take_any(*_PLACEMENT_STRINGS):
                cursor.take("=")
                cursor.string()
            elif cursor.take_any(*_PLACEMENT_NUMBERS):
                cursor.take("=")
                cursor.uint()
            else:
                return f"{text} */"
            text += " "

    def group_name(self) -> str:
        """The name of a resource group."""
        cursor = self._cursor
        return quoted(cursor.next().text) if cursor.at("DEFAULT") else cursor.name()

    def resource_group(self, verb: str, exists: str) -> str:
        """A resource group and its options."""
        cursor = self._cursor
        text = f"/*T![resource_group] {verb} RESOURCE GROUP {exists}{self.group_name()}"
        options: list[str] = []
        while (option := self._group_option()) is not None:
            options.append(option)
            cursor.take(",")
        return f"{text} {', '.join(options)} */" if options else cursor.fail("an option of a resource group")

    def _group_option(self) -> str | None:
        cursor = self._cursor
        if cursor.take("RU_PER_SEC"):
            cursor.take("=")
            return f"RU_PER_SEC = {cursor.take_any('UNLIMITED') or cursor.uint()}"
        if cursor.take("PRIORITY"):
            cursor.take("=")
            return f"PRIORITY = {cursor.need_any('LOW', 'MEDIUM', 'HIGH')}"
        if cursor.take("BURSTABLE"):
            cursor.take("=")
            said = cursor.take_any("TRUE", "FALSE", "MODERATED", "UNLIMITED", "OFF")
            return f"BURSTABLE = {said or 'TRUE'}"
        if word := cursor.take_any("QUERY_LIMIT", "BACKGROUND"):
            cursor.take("=")
            if cursor.take("NULL") or cursor.take("(", ")"):
                return f"{word} = NULL"
            read, between = (self._limit_option, " ") if word == "QUERY_LIMIT" else (self._task_option, ", ")
            cursor.need("(")
            options = [read()]
            while not cursor.take(")"):
                cursor.take(",")
                options.append(read())
            return f"{word} = ({between.join(options)})"
        return None

    def _limit_option(self) -> str:
        cursor = self._cursor
        word = cursor.need_any("EXEC_ELAPSED", "PROCESSED_KEYS", "RU", "ACTION", "WATCH")
        cursor.take("=")
        if word == "EXEC_ELAPSED":
            return f"EXEC_ELAPSED = {cursor.plain_string()}"
        if word in ("PROCESSED_KEYS", "RU"):
            return f"{word} = {cursor.uint()}"
        if word == "ACTION":
            return f"ACTION = {self._action()}"
        watched = cursor.need_any("EXACT", "SIMILAR", "PLAN")
        duration = "UNLIMITED"
        if cursor.take("DURATION"):
            cursor.take("=")
            duration = "UNLIMITED" if cursor.take("UNLIMITED") else cursor.plain(cursor.string().lower())
        return f"WATCH = {watched} DURATION = {duration}"

    def _action(self) -> str:
        cursor = self._cursor
        if cursor.take("SWITCH_GROUP"):
            cursor.need("(")
            name = self.group_name()
            cursor.need(")")
            return f"SWITCH_GROUP({name})"
        return cursor.need_any("DRYRUN", "COOLDOWN", "KILL")

    def _task_option(self) -> str:
        cursor = self._cursor
        word = cursor.need_any("TASK_TYPES", "UTILIZATION_LIMIT")
        cursor.take("=")
        return f"{word} = {cursor.plain_string() if word == 'TASK_TYPES' else cursor.uint()}"
