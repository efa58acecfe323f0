"""The worker's end of its connection: it asks for work, does it, reports the result, and asks again.

A worker is a Spark job of one task that runs as long as the application. Spark starts and places the process.
The application chooses each piece of work, which takes under 1 ms; a Spark job for each piece took 35 ms. A
worker does one piece at a time, for any changefeed. If a piece must end, the application sends GiveUp, which
the worker notices wherever it waits for its sink (`notice`). If that takes too long, the application kills
the process, and no other piece is lost.
"""

from __future__ import annotations

import os
import socket
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final, assert_never

from tidegate.errors import Fatal, Fenced, Retryable, TidegateError
from tidegate.ipc import FramedSocket, socket_name
from tidegate.model.reports import Failed
from tidegate.pipeline.exchange.lines import Line
from tidegate.pipeline.exchange.work import (
    TO_WORKER,
    Begin,
    Deliver,
    Delivered,
    GiveUp,
    Load,
    LoadDone,
    OnDurable,
    Piece,
    Reached,
    Tasks,
    WorkerHello,
    WorkResult,
    parse,
    to_json,
)
from tidegate.pipeline.worker.notice import noticed

REST_S: Final = 30.0
"""After this time without work a worker calls `Tasks.rest`, which closes what it no longer needs. Seconds."""


def serve(address: str, tasks: Tasks, _: Iterator[int]) -> None:
    """Work until the application ends the connection. An error of a piece is reported and ends only it."""
    line = _connected(Path(address))
    line.send_message(to_json(WorkerHello(os.getpid())))
    work(line, tasks)


def work(line: Line, tasks: Tasks) -> None:
    """The same over a line on which the worker has already sent its hello."""

    def report(spans: Mapping[str, int]) -> None:
        line.send_message(to_json(Reached(spans)))

    try:
        while True:
            while not line.waits(REST_S):
                if tasks.rest():
                    return
            received = line.receive()
            if received is None:
                return
            message = parse(received, TO_WORKER)
            # For a piece whose result is on its way, or was given up.
            if isinstance(message, GiveUp):
                continue
            with noticed(line):
                result = _result(message, tasks, report)
            line.send_message(to_json(result))
    finally:
        line.close()


def _result(piece: Piece, tasks: Tasks, on_durable: OnDurable) -> WorkResult | Failed:
    """Do a piece. If it fails, its error is gone when this returns, and with it all that its traceback refers
    to, such as a client of the sink that could not be opened: the report says that nothing works for the
    piece any more.
    """
    try:
        return _do(piece, tasks, on_durable)
    # The piece has failed, not the worker, which takes the next one.
    except Exception as error:
        return failed(error)


def _do(piece: Piece, tasks: Tasks, on_durable: OnDurable) -> WorkResult:
    match piece:
        case Begin():
            return tasks.begin(piece)
        case Deliver():
            return Delivered.of(tasks.deliver(piece, on_durable))
        case Load():
            return LoadDone(tuple(tasks.load(piece)))
        case _:
            assert_never(piece)


def failed(error: Exception) -> Failed:
    """The error of a piece as a message. Only Fatal stops the changefeed; after others it is retried."""
    if not isinstance(error, TidegateError):
        text = "".join(traceback.format_exception(error))
        return Failed("a task of the pipeline failed", "", text[-4000:], "", retry=True)
    kind = next((each.__name__ for each in (Fatal, Fenced, Retryable) if isinstance(error, each)), "")
    return replace(Failed.of(error), retry=kind != "Fatal", kind=kind)


def _connected(path: Path) -> FramedSocket:
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with socket_name(path) as name:
            connected.connect(name)
    except OSError as error:
        connected.close()
        raise Retryable("the application does not answer", where=str(path), why=str(error)) from error
    return FramedSocket(connected)
