"""The worker's end: asks for work, does it, says what became of it, and asks again.

Runs as a Spark job of one task for as long as the driver lives: Spark starts the process and places it; what
it does is decided by the driver for each piece of work, in under a millisecond where a job took 35.
"""

from __future__ import annotations

import os
import socket
import traceback
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tidegate.errors import Fatal, Fenced, Retryable, TidegateError
from tidegate.ipc import FramedSocket, framed, socket_name
from tidegate.model.reports import Failed
from tidegate.pipeline.work import TO_WORKER, Delivered, Reached, Task, WorkerHello, parse, to_json


def serve(address: str, spec_path: str, task: Task, _: Iterator[int]) -> None:
    """Work until the driver ends the connection. What the task raises is said, and raised."""
    line = _connected(Path(address))
    try:
        line.send(framed(to_json(WorkerHello(os.getpid()))))
        while (message := line.receive()) is not None:
            ranges = list(parse(message, TO_WORKER).ranges)
            try:
                reports = task(spec_path, ranges, lambda spans: line.send(framed(to_json(Reached(spans)))))
            except Exception as error:
                line.send(framed(to_json(failed(error))))
                raise
            line.send(framed(to_json(Delivered.of(reports))))
    finally:
        line.close()


def failed(error: Exception) -> Failed:
    """The error of a task. Only Fatal stops the changefeed; whatever else it is, the next one may succeed."""
    if not isinstance(error, TidegateError):
        text = "".join(traceback.format_exception(error))
        return Failed("A task of the pipeline failed.", "", text[-4000:], "", retry=True)
    kind = next((each.__name__ for each in (Fatal, Fenced, Retryable) if isinstance(error, each)), "")
    return replace(Failed.of(error), retry=kind != "Fatal", kind=kind)


def _connected(path: Path) -> FramedSocket:
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with socket_name(path) as name:
            connected.connect(name)
    except OSError as error:
        connected.close()
        raise Retryable("The pipeline's driver does not answer.", where=str(path), why=str(error)) from error
    return FramedSocket(connected)
