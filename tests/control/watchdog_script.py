"""Scripts of a watchdog: `testdata/watchdog/*.txt`. A command is time that passes, or what changes.

The caller looks at it once a second.

    watchdog patience=60s [work=rows] [report=0]     at 0 s, with a first look
    wait 59s                                         a look every second for that time, or until it is hung
    work [rows of span a]; report 7; patience 300s   what it has to do and has reported, from the next look on
    pause 86400s                                     the caller does not look for that time, then looks once
    clock 10s                                        the clock is set to that, then a look
"""

from __future__ import annotations

from tests.control.words import check, seconds, seconds_of
from tests.scripts import Command

from tidegate.control.watchdog import Hung, Watchdog


class WatchdogScript:
    """One watchdog, and what it watches."""

    def __init__(self) -> None:
        self._dog: Watchdog | None = None
        self._now = self._patience = 0.0
        self._work, self._report = "", 0

    def run(self, command: Command) -> str:
        """Do one command; what it shows."""
        check(command, ("patience", "work", "report") if command.name == "watchdog" else ())
        words = " ".join(command.words)
        match command.name:
            case "watchdog":
                self._dog, self._now = Watchdog(), 0.0
                self._patience = seconds(command, "patience")
                self._work = command.options.get("work", "rows")
                self._report = command.number("report", 0)
                self._look()
            case "work":
                self._work = words
            case "report":
                self._report = int(words)
            case "patience":
                self._patience = seconds_of(words)
            case "wait":
                return self._wait(int(seconds_of(words)))
            case "pause":
                return self._in_words(self._look(after=seconds_of(words)))
            case "clock":
                self._now = seconds_of(words)
                return self._in_words(self._look())
            case _:
                raise ValueError(f"{command.where}: a watchdog does not know '{command.name}'")
        return ""

    def _wait(self, looks: int) -> str:
        """The first look of these that finds it hung, or that none does."""
        for _ in range(looks):
            hung = self._look(after=1.0)
            if hung is not None:
                return self._in_words(hung)
        return self._in_words(None)

    def _look(self, after: float = 0.0) -> Hung | None:
        assert self._dog is not None, "a scenario begins with 'watchdog'"
        self._now += after
        return self._dog.step(self._now, self._work, self._report, self._patience)

    def _in_words(self, hung: Hung | None) -> str:
        if hung is None:
            return f"{self._now:g}s: not hung"
        return f"{self._now:g}s: hung, silent for {hung.silent_s:g}s with {hung.work}"
