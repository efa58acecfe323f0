"""An application without Spark: a process of `stand_in_pipeline` for each incarnation, killed at its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from tidegate.ipc import ControlClient
from tidegate.launcher import bound
from tidegate.model.reports import TO_APPLICATION, ApplicationHello, End, Ended, Run, Working

PIPELINE = Path(__file__).with_name("stand_in_pipeline.py")


def main(out: Path, socket: Path) -> None:
    signal.signal(signal.SIGTERM, lambda number, frame: os._exit(0))
    control = ControlClient(socket, ApplicationHello(os.getpid()))
    control.send(Working(2, (), ()))
    running: dict[tuple[str, int], subprocess.Popen[bytes]] = {}

    def see_off(key: tuple[str, int], process: subprocess.Popen[bytes]) -> None:
        process.wait()
        control.send(Ended(*key))

    while (message := control.receive(TO_APPLICATION)) is not None:
        key = message.changefeed, message.incarnation
        match message:
            case Run(_, _, spec):
                command = [sys.executable, PIPELINE, out, spec]
                running[key] = subprocess.Popen(bound(command, signal.SIGKILL))
                threading.Thread(target=see_off, args=(key, running[key]), daemon=True).start()
            case End():
                if key in running:
                    running[key].kill()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
