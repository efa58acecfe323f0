"""`tidegate server`: run a capture. Heavy imports happen in the command."""

from __future__ import annotations

import ipaddress
import json
import os
import re
import socket
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tidegate import __version__
from tidegate.errors import TidegateError
from tidegate.program import loaded

if TYPE_CHECKING:
    from tidegate.api.access_rules import Rules
    from tidegate.server.capture import Capture, Options
    from tidegate.tls import Tls


LOCAL: Final = re.compile(r"local(\[(\d+|\*)(, *\d+)?\])?")
CLUSTER: Final = re.compile(r"spark://.|yarn$|k8s://.")
LEVELS: Final = {"debug": "DEBUG", "info": "INFO", "warn": "WARNING", "error": "ERROR"}
"""The names of levels in TiCDC and in Python."""


def server(
    pd: Annotated[str, typer.Option("--pd", help="PD's address, host:port[,host:port...].")],
    data_dir: Annotated[
        Path, typer.Option(help="The folder for all files of the capture; created if it does not exist.")
    ],
    addr: Annotated[
        str, typer.Option("--addr", help="Address of the HTTP API; port 0 takes a free one.")
    ] = "127.0.0.1:8300",
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            help="A host name by which clients may call the API, in addition to localhost and IP addresses."
        ),
    ] = None,
    spark_master: Annotated[
        str, typer.Option(help="Where Spark runs the changefeeds' tasks, as in spark-submit --master.")
    ] = "local[*]",
    worker_addr: Annotated[
        str,
        typer.Option(
            help="host:port at which a Spark cluster reaches this machine; port 0: any free port. "
            "Docs: cluster.md."
        ),
    ] = "",
    worker_python: Annotated[
        str,
        typer.Option(
            help="Path of a Python with Tidegate on the cluster's machines; default: the path of this one."
        ),
    ] = "",
    worker_cn: Annotated[
        list[str] | None,
        typer.Option(
            help="A common name that certificates of the cluster's machines may have; default: any "
            "that the CA signed."
        ),
    ] = None,
    api_tls: Annotated[
        bool,
        typer.Option(
            "--api-tls",
            help="Serve the HTTP API over TLS. Clients must show a certificate that the CA of --ca signed.",
        ),
    ] = False,
    cert_allowed_cn: Annotated[
        list[str] | None,
        typer.Option(
            help="A common name that clients of --api-tls may have; default: any that the CA signed."
        ),
    ] = None,
    event_store_quota: Annotated[
        str,
        typer.Option(
            help="Disk space that the event store may use, e.g. 500MB or 20GiB; 0: no limit. Docs: "
            "trouble.md."
        ),
    ] = "0",
    etcd: Annotated[
        str,
        typer.Option(
            help="Endpoints of an etcd, http://HOST:PORT[,...], that several captures of one cluster share: "
            "they divide the work, and one owns the changefeeds. Docs: captures.md."
        ),
    ] = "",
    session_ttl: Annotated[
        int,
        typer.Option(min=3, max=600, help="Seconds without contact after which another capture takes over."),
    ] = 10,
    puller_timeout: Annotated[
        float,
        typer.Option(
            min=1,
            help="Seconds without a message from the puller process after which it is killed and restarted.",
        ),
    ] = 60.0,
    gc_ttl: Annotated[
        int,
        typer.Option(
            min=60, help="Seconds for which upstream keeps the history of a stopped or failed changefeed."
        ),
    ] = 86_400,
    event_store_reserve: Annotated[
        float,
        typer.Option(
            min=0.0, max=0.9, help="Share of the disk that the event store leaves free, 20 GiB at most."
        ),
    ] = 0.05,
    record: Annotated[
        Path | None,
        typer.Option(
            help="Record in this folder what owners and processors decide, for `tidegate replay`; it takes "
            "256 MiB at most."
        ),
    ] = None,
    log_level: Annotated[str, typer.Option(help=f"The lowest level to log: {', '.join(LEVELS)}.")] = "info",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the ready line and the log as JSON lines.")
    ] = False,
) -> None:
    """Run a capture, which follows TiKV and delivers changefeeds.

    It waits until PD answers, prints one line when it is ready, and runs until SIGTERM or Ctrl-C. The log
    goes to standard error.
    """
    if log_level.lower() not in LEVELS:
        raise typer.BadParameter(f"'{log_level}' is not one of {', '.join(LEVELS)}", param_hint="--log-level")
    workers = _workers(spark_master, worker_addr, worker_python, worker_cn or [])
    quota = _bytes(event_store_quota)
    secured = _api_tls(api_tls, cert_allowed_cn or [])
    import asyncio

    from tidegate import log
    from tidegate.access import AccessToken
    from tidegate.api.access_rules import Rules
    from tidegate.api.listening import listen
    from tidegate.etcd.client import parse_endpoints
    from tidegate.server.capture import Options, application_command

    loaded()
    log.setup(json_lines=as_json, level=LEVELS[log_level.lower()])
    os.umask(0o077)
    try:
        listener = listen(addr)
    except TidegateError as error:
        print(error.render(), file=sys.stderr)
        raise typer.Exit(error.exit_code) from error
    try:
        if etcd:
            parse_endpoints(etcd)  # now, so that an error shows before PD has answered
        options = Options(
            pd=pd,
            data_dir=data_dir.absolute(),
            event_store_bytes=quota,
            event_store_reserve=event_store_reserve,
            puller_timeout_s=puller_timeout,
            gc_ttl_s=gc_ttl,
            elsewhere=bool(workers),
            etcd=etcd,
            session_ttl_s=session_ttl,
            token=AccessToken.from_environment(),
            api_tls=secured,
            record=record.absolute() if record is not None else None,
            standing_by=partial(_say_standing_by, as_json=as_json),
            application_command=partial(application_command, spark_master=spark_master, workers=workers),
        )
        hosts, names = frozenset(name.lower() for name in allow_host or []), frozenset(cert_allowed_cn or [])
        rules = Rules(hosts, AccessToken.from_environment(), names)
        failure = asyncio.run(_run(options, listener, rules, as_json))
    except TidegateError as error:
        failure = error
    if failure is not None:
        print(failure.render(), file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    # A thread may still be in a blocking call to the sink. Abandoning it loses nothing.
    os._exit(failure.exit_code if failure is not None else 0)


def _api_tls(wanted: bool, names: list[str]) -> Tls | None:
    """The certificates with which the API speaks TLS; None: plain HTTP."""
    from tidegate.tls import Tls

    if not wanted:
        if names:
            raise typer.BadParameter(
                "without --api-tls clients show no certificates", param_hint="--cert-allowed-cn"
            )
        return None
    found = Tls.from_environment()
    if found is None or found.cert is None:
        raise typer.BadParameter(
            "it needs certificates: give --ca, --cert and --key (tidegate --help)", param_hint="--api-tls"
        )
    return found


def _workers(master: str, addr: str, python: str, names: list[str]) -> tuple[str, ...]:
    """The application's options for workers on other machines; empty: there are none."""
    if LOCAL.fullmatch(master):
        if addr:
            raise typer.BadParameter(
                "it is for Spark clusters: give --spark-master", param_hint="--worker-addr"
            )
        return ()
    if not CLUSTER.match(master):
        raise typer.BadParameter(
            f"'{master}' is not local, local[N], local[*], spark://HOST:PORT, yarn or k8s://URL",
            param_hint="--spark-master",
        )
    host, _, port = addr.rpartition(":")
    if not host or not port.isdecimal():
        raise typer.BadParameter(
            f"'{addr}' is not host:port; with a cluster its machines have to reach this one",
            param_hint="--worker-addr",
        )
    if host.strip("[]") in ("0.0.0.0", "::"):
        hint = f"{host} is no address that other machines can reach: give the one they use"
        raise typer.BadParameter(hint, param_hint="--worker-addr")
    from tidegate.tls import Tls

    if Tls.from_environment() is None and not _is_loopback(host):
        raise typer.BadParameter(
            f"workers reach {host} by the network, which carries the credentials of sinks: give --ca, --cert "
            "and --key (tidegate --help)",
            param_hint="--worker-addr",
        )
    if names and Tls.from_environment() is None:
        hint = "without TLS workers show no certificates: give --ca, --cert and --key"
        raise typer.BadParameter(hint, param_hint="--worker-cn")
    try:
        socket.create_server((host.strip("[]"), int(port))).close()
    except (OSError, OverflowError) as error:
        hint = f"nothing can listen at {addr} on this machine: {error}"
        raise typer.BadParameter(hint, param_hint="--worker-addr") from error
    return addr, python or sys.executable, ",".join(names)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _bytes(text: str) -> int:
    """Parse a size as people write it, such as 10GiB."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(?:([KMGT])(i?)B?|B)?", text.strip(), re.IGNORECASE)
    if found is None:
        hint = f"'{text}' is not a size: 0, or a number with MB, GB, TB, MiB, GiB or TiB"
        raise typer.BadParameter(hint, param_hint="--event-store-quota")
    power = " KMGT".index((found[2] or " ").upper())
    unit: int = (1024 if found[3] else 1000) ** power
    return round(float(found[1]) * unit)


async def _run(
    options: Options, listener: socket.socket, rules: Rules, as_json: bool
) -> TidegateError | None:
    from tidegate.api.serve import run, stop_on_signals

    stop = stop_on_signals()
    return await run(options, listener, lambda capture: _say_ready(capture, as_json), stop, rules)


def _say_ready(capture: Capture, as_json: bool) -> None:
    address = capture.options.address
    ready = {
        "event": "ready",
        "addr": address,
        "pd": capture.options.pd,
        "cluster_id": capture.cluster,
        "data_dir": str(capture.options.data_dir),
        "pid": os.getpid(),
        "version": __version__,
    }
    if capture.options.etcd:
        ready["owner_rev"] = capture.node.owner_rev
    at = f"{_scheme(capture)}://{address}"
    text = f"capture ready: {at}, PD {capture.options.pd}, cluster {capture.cluster}"
    print(json.dumps(ready) if as_json else text, flush=True)


def _say_standing_by(capture: Capture, as_json: bool) -> None:
    address, owner = capture.options.address, capture.session.owner
    at = owner.address if owner is not None else ""
    members = {"event": "standby", "addr": address, "owner": at, "pid": os.getpid()}
    scheme = _scheme(capture)
    text = f"capture on standby: {scheme}://{address}; the owner is at {scheme}://{at}"
    print(json.dumps(members) if as_json else text, flush=True)


def _scheme(capture: Capture) -> str:
    return "http" if capture.options.api_tls is None else "https"
