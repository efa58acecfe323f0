"""Scripts of a changefeed's life: `testdata/changefeed/*.txt`. A command is an event of one changefeed.

    changefeed [stuck=1800s]            a new one
    restored pending                    one whose stored state is that, after a restart of the control process
    fail now=10s [stays]                its pipeline fails; `stays`: with an error that cannot pass
    fail-again 9 now=0s                 it fails so many times, each time as soon as it runs again
    tick now=11s                        time passes
    progress                            the sink has taken a Resolved
    warn                                trouble next to the pipeline
    finish                              all up to the target ts is delivered
    pause, resume, remove               commands of the user

Each shows the state that follows, or that nothing changes.
"""

from __future__ import annotations

from tests.control.words import check, seconds
from tests.scripts import Command

from tidegate.control.changefeed import Command as UserCommand
from tidegate.control.changefeed import Life, State
from tidegate.control.metadata import FeedError
from tidegate.errors import InvalidInput

ERROR = FeedError("The broker does not answer.", "CDC:ErrRetryable", 0)
_OPTIONS = {"changefeed": ("stuck",), "fail": ("now",), "fail-again": ("now",), "tick": ("now",)}


class ChangefeedScript:
    """The life of one changefeed."""

    def __init__(self) -> None:
        self._life: Life | None = None
        self._stuck_s = 0.0

    def run(self, command: Command) -> str:
        """Do one command; what it shows."""
        check(command, _OPTIONS.get(command.name, ()))
        match command.name, command.words:
            case "changefeed", ():
                self._life, self._stuck_s = Life(), seconds(command, "stuck", 1800.0)
                return _shown(self._life)
            case "restored", (state,):
                self._life = Life.restored(
                    state, ERROR if state in ("pending", "warning", "failed") else None
                )
                return _shown(self._life)
        before = self._life
        assert before is not None, "a scenario begins with 'changefeed' or 'restored'"
        if command.name == "fail-again":
            return self._fail_again(before, int(command.words[0]), seconds(command, "now"))
        try:
            self._life = self._after(before, command)
        except InvalidInput as error:
            return f"refused: {error.what}"
        return "nothing changes" if self._life is before else _shown(self._life)

    def _after(self, life: Life, command: Command) -> Life:
        match command.name, command.words:
            case "fail", words if words in ((), ("stays",)):
                return self._failed(life, seconds(command, "now"), retry=not words)
            case "tick", ():
                return life.ticked(seconds(command, "now"))
            case "progress", ():
                return life.progressed()
            case "warn", ():
                return life.warned(ERROR)
            case "finish", ():
                return life.finished()
            case ("pause" | "resume" | "remove") as name, ():
                return life.commanded(UserCommand(name))
        raise ValueError(f"{command.where}: a changefeed does not know '{command.name}'")

    def _failed(self, life: Life, now: float, *, retry: bool = True) -> Life:
        return life.failed(ERROR, retry=retry, now=now, stuck_s=self._stuck_s)

    def _fail_again(self, life: Life, times: int, now: float) -> str:
        waits = []
        for _ in range(times):
            life = self._failed(life, now)
            waits.append(f"{life.retry_at - now:g}s")
            now = life.retry_at
            life = life.ticked(now)
        self._life = life
        return f"waits {', '.join(waits)}; at {now:g}s {_shown(life)}"


def _shown(life: Life) -> str:
    words = [str(life.state)]
    if life.runs:
        words.append("runs")
    if life.state is State.PENDING:
        words.append(f"tries again at {life.retry_at:g}s")
    if life.error is not None:
        words.append("shows the error")
    return ", ".join(words)
