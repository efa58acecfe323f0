"""The control process's end of the socket, for tests of a pipeline process alone."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tidegate.ipc import HEADER, parsed
from tidegate.model.reports import (
    HELLOS,
    REPORTS_AFTER,
    Durable,
    Failed,
    Hello,
    PipelineHello,
    Report,
    Started,
    parse,
)

PATIENCE_S = 240.0


class ControlEnd:
    """Listens, keeps every message, and waits for what a test asks for."""

    def __init__(self, path: Path) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen()
        self.messages: list[Report] = []
        self.started: set[int] = set()
        """Incarnations."""
        self._new = threading.Condition()
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> ControlEnd:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def wait_message(self, wanted: Callable[[Report], bool], patience_s: float = PATIENCE_S) -> Report:
        """The first message that fits."""
        deadline = time.monotonic() + patience_s
        with self._new:
            while True:
                for message in self.messages:
                    if wanted(message):
                        return message
                assert self._new.wait(max(0.0, deadline - time.monotonic())), f"got only {self.messages}"

    def wait_any_checkpoint(self) -> Report:
        """The first that says what is durable."""
        return self.wait_message(lambda report: isinstance(report, Durable))

    def wait_failure(self) -> Failed:
        """The first failure."""
        found = self.wait_message(lambda report: isinstance(report, Failed))
        assert isinstance(found, Failed)
        return found

    def wait_started(self, incarnation: int) -> None:
        """That an incarnation delivers."""
        deadline = time.monotonic() + PATIENCE_S
        with self._new:
            while incarnation not in self.started:
                assert self._new.wait(max(0.0, deadline - time.monotonic())), self.started

    def wait_spans(self, ts: int, patience_s: float = PATIENCE_S) -> None:
        """Wait until every span that a pipeline has begun with has reached `ts`."""
        self.wait_any_checkpoint()
        deadline = time.monotonic() + patience_s
        with self._new:
            while min(self._reached().values()) < ts:
                assert self._new.wait(max(0.0, deadline - time.monotonic())), self._reached()

    def _reached(self) -> dict[str, int]:
        reached: dict[str, int] = {}
        for message in self.messages:
            if isinstance(message, Started | Durable):
                reached |= {span: max(ts, reached.get(span, 0)) for span, ts in message.spans.items()}
        return reached

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._read, args=(connection,), daemon=True).start()

    def _read(self, connection: socket.socket) -> None:
        stream = connection.makefile("rb")
        hello: Hello | None = None
        while header := stream.read(HEADER.size):
            message = parsed(stream.read(HEADER.unpack(header)[0]))
            if hello is None:
                hello = parse(message, HELLOS)
                assert isinstance(hello, PipelineHello)
                continue
            report = parse(message, REPORTS_AFTER[PipelineHello])
            with self._new:
                self.messages.append(report)
                if isinstance(report, Started):
                    self.started.add(hello.incarnation)
                self._new.notify_all()
