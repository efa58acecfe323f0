"""The puller's process: follows key spans upstream and keeps the event store.

    python -m tidegate.server.puller_process DATA_DIR PD

Told by the control process over its socket: `watch {start, end, start_ts}`, `unwatch {start, end}`,
`drop_below {start, end, ts}`, `remove {start, end}` (keys in hex). Tells `status {spans}` every 200 ms and
`error` when something fails. Ends when the socket closes; every file it leaves is whole.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any, Final

from tidegate import log
from tidegate.errors import Retryable, TidegateError
from tidegate.eventstore.store import EventStore
from tidegate.ipc import ControlClient
from tidegate.kvclient.pd import PdClient
from tidegate.model.span import Span
from tidegate.puller.puller import Puller

STATUS_S: Final = 0.2
KV_MODE: Final = "tidb"


def store_dir(data_dir: Path, cluster_id: int) -> Path:
    """Where the event store of a cluster lies."""
    return data_dir / "events" / str(cluster_id) / KV_MODE


def run(data_dir: Path, pd_address: str) -> int:
    """Serve until told to end; the exit code."""
    control = ControlClient(data_dir / "control.sock", {"role": "puller", "pid": os.getpid()})
    signal.signal(signal.SIGTERM, lambda number, frame: _end(control, number, frame))
    try:
        with PdClient(pd_address) as pd:
            store = EventStore(store_dir(data_dir, pd.cluster_id))
            puller = Puller(pd, store, on_failure=lambda error: _stop(control, error))
            try:
                _serve(control, store, puller)
            finally:
                puller.close()
                store.close()
    except TidegateError as error:
        _report(control, error)
        return error.exit_code
    return 0


def _end(control: ControlClient, number: int, frame: FrameType | None) -> None:
    control.close()


def _stop(control: ControlClient, error: TidegateError) -> None:
    """The puller cannot go on: say why and end the process."""
    _report(control, error)
    control.close()


def _serve(control: ControlClient, store: EventStore, puller: Puller) -> None:
    done = threading.Event()
    teller = threading.Thread(target=_tell_status, args=(control, puller, done), name="status", daemon=True)
    teller.start()
    try:
        while (message := control.receive()) is not None:
            try:
                _obey(message, store, puller)
            except Retryable as error:
                _report(control, error)
    finally:
        done.set()
        teller.join()


def _obey(message: dict[str, Any], store: EventStore, puller: Puller) -> None:
    span = Span(bytes.fromhex(message["start"]), bytes.fromhex(message["end"]))
    match message["type"]:
        case "watch":
            if store.open_span(span).complete_from > int(message["start_ts"]):
                # Another feed follows it from later on: it must be pulled again from this start.
                puller.unwatch(span)
            puller.watch(span, int(message["start_ts"]))
        case "unwatch":
            puller.unwatch(span)
        case "drop_below":
            store.open_span(span).drop_below(int(message["ts"]))
        case "remove":
            puller.unwatch(span)
            store.remove_span(span)


def _tell_status(control: ControlClient, puller: Puller, done: threading.Event) -> None:
    while not done.wait(STATUS_S):
        try:
            control.send({"type": "status", "spans": puller.status()})
        except Retryable:
            return


def _report(control: ControlClient, error: TidegateError) -> None:
    try:
        control.send(error_message(error))
    except Retryable:
        print(error, file=sys.stderr)


def error_message(error: TidegateError) -> dict[str, Any]:
    """An error as it travels over the socket."""
    parts = {"what": error.what, "where": error.where, "why": error.why, "fix": error.fix}
    return {"type": "error", "retry": isinstance(error, Retryable), **parts}


if __name__ == "__main__":
    log.setup()
    sys.exit(run(Path(sys.argv[1]), sys.argv[2]))
