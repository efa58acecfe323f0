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


class SequenceOptions(Cursor):
    """Reads the options of these statements."""

    def bare_string(self) -> str:
        """A string without its character set."""
        return bare_value(self.string())

    def sequence_options(self, *, altered: bool = False) -> list[str]:
        """The options of a sequence."""
        found: list[str] = []
        while (option := self._sequence_option(altered)) is not None:
            found.append(option)
        return found

    def _sequence_option(self, altered: bool) -> str | None:
        if word := self.take_any(*_NO):
            return _NO[word]
        if self.take("NO"):
            return _NO_WORDS[self.need_any(*_NO_WORDS)]
        if word := self.take_any("INCREMENT", "START"):
            self.take_any("=", "BY" if word == "INCREMENT" else "WITH")
            return f"{word} {'BY' if word == 'INCREMENT' else 'WITH'} {self.signed()}"
        if word := self.take_any("MINVALUE", "MAXVALUE", "CACHE"):
            self.take("=")
            return f"{word} {self.signed()}"
        if altered and self.take("RESTART"):
            said = self.take_any("=", "WITH")
            more = said or self.at_any("+", "-") or self.token.text.isdecimal()
            return f"RESTART WITH {self.signed()}" if more else "RESTART"
        return None

    def placement_policy(self, verb: str, exists: str) -> str:
        """A placement policy. Its options are left out."""
        text = f"/*T![placement] {verb}PLACEMENT POLICY {exists}{quoted(self.identifier())}"
        while True:
            self.take(",")
            if self.take_any(*_PLACEMENT_STRINGS):
                self.take("=")
                self.string()
            elif self.take_any(*_PLACEMENT_NUMBERS):
                self.take("=")
                self.uint()
            else:
                return f"{text} */"
            text += " "

    def group_name(self) -> str:
        """The name of a resource group."""
        return quoted(self.next().text) if self.at("DEFAULT") else self.name()

    def resource_group(self, verb: str, exists: str) -> str:
        """A resource group and its options."""
        text = f"/*T![resource_group] {verb} RESOURCE GROUP {exists}{self.group_name()}"
        options: list[str] = []
        while (option := self._group_option()) is not None:
            options.append(option)
            self.take(",")
        return f"{text} {', '.join(options)} */" if options else self.fail("an option of a resource group")

    def _group_option(self) -> str | None:
        if self.take("RU_PER_SEC"):
            self.take("=")
            return f"RU_PER_SEC = {self.take_any('UNLIMITED') or self.uint()}"
        if self.take("PRIORITY"):
            self.take("=")
            return f"PRIORITY = {self.need_any('LOW', 'MEDIUM', 'HIGH')}"
        if self.take("BURSTABLE"):
            self.take("=")
            said = self.take_any("TRUE", "FALSE", "MODERATED", "UNLIMITED", "OFF")
            return f"BURSTABLE = {said or 'TRUE'}"
        if word := self.take_any("QUERY_LIMIT", "BACKGROUND"):
            self.take("=")
            if self.take("NULL") or self.take("(", ")"):
                return f"{word} = NULL"
            read, between = (self._limit_option, " ") if word == "QUERY_LIMIT" else (self._task_option, ", ")
            self.need("(")
            options = [read()]
            while not self.take(")"):
                self.take(",")
                options.append(read())
            return f"{word} = ({between.join(options)})"
        return None

    def _limit_option(self) -> str:
        word = self.need_any("EXEC_ELAPSED", "PROCESSED_KEYS", "RU", "ACTION", "WATCH")
        self.take("=")
        if word == "EXEC_ELAPSED":
            return f"EXEC_ELAPSED = {self.plain_string()}"
        if word in ("PROCESSED_KEYS", "RU"):
            return f"{word} = {self.uint()}"
        if word == "ACTION":
            return f"ACTION = {self._action()}"
        watched = self.need_any("EXACT", "SIMILAR", "PLAN")
        duration = "UNLIMITED"
        if self.take("DURATION"):
            self.take("=")
            duration = "UNLIMITED" if self.take("UNLIMITED") else self.plain(self.string().lower())
        return f"WATCH = {watched} DURATION = {duration}"

    def _action(self) -> str:
        if self.take("SWITCH_GROUP"):
            self.need("(")
            name = self.group_name()
            self.need(")")
            return f"SWITCH_GROUP({name})"
        return self.need_any("DRYRUN", "COOLDOWN", "KILL")

    def _task_option(self) -> str:
        word = self.need_any("TASK_TYPES", "UTILIZATION_LIMIT")
        self.take("=")
        return f"{word} = {self.plain_string() if word == 'TASK_TYPES' else self.uint()}"
