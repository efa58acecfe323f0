"""Runs a capture with its API on an address until it is asked to stop.

`tidegate server` calls `run`. It listens, opens the capture, reports that the capture is ready, waits for a
stop or for the loss of ownership, and ends everything within a few seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import ipaddress
import logging
import signal
import socket
import uuid
from collections.abc import Callable, Iterator
from typing import Final

import uvicorn

from tidegate.api.access_rules import CONNECTIONS_MAX, GuardedApp, Rules
from tidegate.api.app import create_app
from tidegate.api.listening import address_of, server_config
from tidegate.errors import Fenced, InvalidInput, Retryable, TidegateError
from tidegate.log import event
from tidegate.server.capture import Capture, Options
from tidegate.server.captures.membership import AGAIN_S

LOG: Final = logging.getLogger(__name__)

CLOSE_S: Final = 1
"""How long open HTTP requests may take at the end."""

Ready = Callable[[Capture], None]


class _Server(uvicorn.Server):
    """uvicorn without its own signal handlers, because ours also end the capture."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def stop_on_signals() -> asyncio.Event:
    """An event that SIGTERM and SIGINT set; call it in the main thread's loop."""
    stop = asyncio.Event()
    # A handler of the loop, because one of `signal` would not wake a loop that waits.
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


def check_access(listener: socket.socket, rules: Rules, *, is_secure: bool = False) -> None:
    """Raises InvalidInput for an address that other machines reach if clients need neither token nor
    certificate.

    `is_secure`: clients must show certificates.
    """
    host = ipaddress.ip_address(listener.getsockname()[0].partition("%")[0])
    if not host.is_loopback and rules.token is None and not is_secure:
        raise InvalidInput(
            "other machines reach this address, and anybody there could create changefeeds",
            where=address_of(listener),
            fix="give a token, `tidegate --token-file FILE server ...`, or certificates and --api-tls, or "
            "listen on 127.0.0.1",
        )


def check_reachable(listener: socket.socket) -> None:
    """Raises InvalidInput for an address by which other captures would reach themselves."""
    if ipaddress.ip_address(listener.getsockname()[0].partition("%")[0]).is_unspecified:
        raise InvalidInput(
            "other captures cannot reach this address",
            where=address_of(listener),
            why="with --etcd a capture that is not the owner forwards requests to the owner's --addr",
            fix="give --addr an address of this machine that the other captures can reach",
        )


async def run(
    options: Options,
    listener: socket.socket,
    ready: Ready,
    stop: asyncio.Event,
    rules: Rules = Rules(),
) -> TidegateError | None:
    """Serve until `stop`; returns the error that ended it, or None. Raises TidegateError if it cannot start.

    While PD does not answer, it waits.
    """
    check_access(listener, rules, is_secure=options.api_tls is not None)
    context = None if options.api_tls is None else options.api_tls.http()
    if options.etcd:
        check_reachable(listener)
    # A capture that has lost its session joins again under the same id. So it stays drained, for example.
    options = dataclasses.replace(options, address=address_of(listener), id=options.id or str(uuid.uuid4()))
    capture = Capture(options)
    app = create_app(capture)
    server = _Server(server_config(GuardedApp(app, rules), CONNECTIONS_MAX, CLOSE_S, context))
    # Listen before the capture is open, so that its status can be read while it waits for PD.
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    # A server that ends by itself ends the capture too. Otherwise nobody could reach a capture that runs on.
    serving.add_done_callback(lambda served: stop.set())
    try:
        while True:
            lost = await _live(capture, ready, stop)
            if lost is None or stop.is_set() or not options.etcd:
                return lost
            event(LOG, logging.WARNING, "the capture starts its work again", why=str(lost))
            await capture.end_session()
            await asyncio.sleep(AGAIN_S)
            capture = app.state.capture = Capture(options, capture.process)
    finally:
        # The API ends first, so that no request meets a capture that is being closed.
        server.should_exit = True
        await serving
        await capture.stop()


async def _live(capture: Capture, ready: Ready, stop: asyncio.Event) -> TidegateError | None:
    """Run a capture from its start until it is stopped or lost; if lost, returns the reason."""
    stopping = asyncio.create_task(stop.wait())
    begin = capture.start
    try:
        while True:
            beginning = asyncio.create_task(begin())
            await asyncio.wait((beginning, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not beginning.done():
                # `Capture.start` closes what it has opened when it is cancelled.
                beginning.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await beginning
                return None
            try:
                await beginning
            except (Fenced, Retryable) as error:
                if not capture.options.etcd:
                    raise
                return error  # etcd, or the session, was lost
            ready(capture)
            resigning = asyncio.create_task(capture.resigns.wait())
            ends = (capture.lost, stopping, resigning)
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            resigning.cancel()
            if capture.lost.done():
                return capture.lost.result()
            if stopping.done():
                return None
            begin = capture.step_down
    finally:
        stopping.cancel()
