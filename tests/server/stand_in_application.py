"""An application without Spark: a process of `stand_in_pipeline` for each incarnation, killed at its end.

It imports the pipeline once and forks, as Spark's daemon does: the imports take more than a second of CPU.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from contextlib import suppress
from pathlib import Path

import stand_in_pipeline

from tidegate.ipc import ControlClient
from tidegate.launcher import bind_forks
from tidegate.model.reports import TO_APPLICATION, ApplicationHello, End, Ended, Run, Working


def begin(control: ControlClient, out: Path, spec: Path) -> int:
    """The pid of a pipeline."""
    pid = os.fork()
    if pid:
        return pid
    try:
        control._line._socket.close()  # otherwise the capture would not notice that the application has ended
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        stand_in_pipeline.main(out, spec)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def main() -> None:
    out, socket = map(Path, sys.argv[1:])
    signal.signal(signal.SIGTERM, lambda number, frame: os._exit(0))
    bind_forks(signal.SIGKILL)
    control = ControlClient(socket, ApplicationHello(os.getpid()))
    control.send(Working(2, (), ()))
    running: dict[tuple[str, int], int] = {}

    def see_off(key: tuple[str, int], pid: int) -> None:
        os.waitpid(pid, 0)
        running.pop(key, None)
        control.send(Ended(*key))

    while (message := control.receive(TO_APPLICATION)) is not None:
        key = message.changefeed, message.incarnation
        match message:
            case Run(_, _, spec):
                running[key] = begin(control, out, Path(spec))
                threading.Thread(target=see_off, args=(key, running[key]), daemon=True).start()
            case End():
                if key in running:
                    with suppress(ProcessLookupError):  # it has just ended
                        os.kill(running[key], signal.SIGKILL)


if __name__ == "__main__":
    main()
