"""Run a capture with its API on an address until told to stop.

`run` is what `tidegate server` calls: it opens the capture, listens, says that it is ready, waits to be
stopped or for the loss of ownership, and ends everything within a few seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import ipaddress
import signal
import socket
from collections.abc import Callable, Iterator
from typing import Final

import uvicorn

from tidegate.api.app import create_app
from tidegate.api.door import CONNECTIONS_MAX, Door, Rules
from tidegate.api.listening import address_of, server_config
from tidegate.errors import InvalidInput, TidegateError
from tidegate.server.capture import Capture, Options

CLOSE_S: Final = 1
"""Grace for open HTTP requests at the end."""

Ready = Callable[[Capture], None]


class _Server(uvicorn.Server):
    """uvicorn without its own signal handlers: ours end the capture too."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def stop_on_signals() -> asyncio.Event:
    """An event that SIGTERM and SIGINT set; to be called in the main thread's loop."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


def check_door(listener: socket.socket, rules: Rules) -> None:
    """Raises InvalidInput for an address that other machines reach without a token to ask them for."""
    host = ipaddress.ip_address(listener.getsockname()[0].partition("%")[0])
    if not host.is_loopback and rules.token is None:
        raise InvalidInput(
            "Other machines reach this address, and anybody there could create changefeeds.",
            where=address_of(listener),
            fix="give a token, `tidegate --token-file FILE server ...`, or listen on 127.0.0.1",
        )


async def run(
    options: Options,
    listener: socket.socket,
    ready: Ready,
    stop: asyncio.Event,
    rules: Rules = Rules(),
) -> TidegateError | None:
    """Serve until `stop`; the error that ended it, or None. Raises TidegateError when it cannot start.

    A PD that does not answer is waited for.
    """
    check_door(listener, rules)
    capture = Capture(dataclasses.replace(options, address=address_of(listener)))
    server = _Server(server_config(Door(create_app(capture), rules), CONNECTIONS_MAX, CLOSE_S))
    # It listens before the capture is open: while that waits for PD, its status can be asked for.
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        if await _started(capture, stop):
            ready(capture)
            capture.lost.add_done_callback(lambda lost: stop.set())
            serving.add_done_callback(lambda served: stop.set())
            await stop.wait()
        return capture.lost.result() if capture.lost.done() else None
    finally:
        server.should_exit = True
        await serving
        await capture.stop()


async def _started(capture: Capture, stop: asyncio.Event) -> bool:
    """Open the capture; False when it is told to stop before that is done."""
    starting = asyncio.create_task(capture.start())
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not starting.done():
        starting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await starting
        return False
    await starting
    return True
