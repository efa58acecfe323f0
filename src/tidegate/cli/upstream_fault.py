"""`tidegate upstream fault ...`: turns faults of the embedded upstream on and off.

Faults last until `fault clear` or the upstream's end. Each command prints all faults that are on.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from tidegate.cli.client import reported
from tidegate.cli.upstream_region import JsonOption, PdOption

app = typer.Typer(help="Cause faults in the embedded upstream.", no_args_is_help=True)

OnOff = Annotated[str, typer.Argument(metavar="on|off", help="Start the fault, or end it.")]
FreezeOrThaw = Annotated[str, typer.Argument(metavar="freeze|thaw", help="Freeze it, or let it continue.")]
StoreArgument = Annotated[int, typer.Argument(metavar="STORE", help="The store's id.")]


@app.callback()
def group() -> None:
    """Cause faults in the embedded upstream."""


@app.command()
def show(pd: PdOption, as_json: JsonOption = False) -> None:
    """Show the faults that are on."""
    _set(pd, as_json)


@app.command()
def clear(pd: PdOption, as_json: JsonOption = False) -> None:
    """End all faults; stores that are down start again."""
    _set(pd, as_json, clear=True)


@app.command()
def tso(pd: PdOption, state: FreezeOrThaw, as_json: JsonOption = False) -> None:
    """Stop PD from giving out timestamps, or start it again."""
    _set(pd, as_json, tso_frozen=_either(state, "freeze", "thaw"))


@app.command("resolved-ts")
def resolved_ts(pd: PdOption, state: FreezeOrThaw, as_json: JsonOption = False) -> None:
    """Stop resolved ts at all stores, or let them advance again."""
    _set(pd, as_json, resolved_frozen=_either(state, "freeze", "thaw"))


@app.command("stale-pd")
def stale_pd(pd: PdOption, state: OnOff, as_json: JsonOption = False) -> None:
    """Freeze the regions that PD answers with, or thaw them."""
    _set(pd, as_json, pd_stale=_either(state, "on", "off"))


@app.command()
def delay(
    pd: PdOption,
    apply_ms: Annotated[
        float | None, typer.Option(help="Milliseconds to wait before each round of applies; 0: none.")
    ] = None,
    scan_ms: Annotated[
        float | None, typer.Option(help="Milliseconds to wait before each event of a scan; 0: none.")
    ] = None,
    snapshot_ms: Annotated[
        float | None,
        typer.Option(help="Milliseconds to wait before the snapshot of a scan is taken; 0: none."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Slow down applies, or incremental scans."""
    wanted = {"apply_delay_ms": apply_ms, "scan_delay_ms": scan_ms, "snapshot_delay_ms": snapshot_ms}
    given = [(name, value) for name, value in wanted.items() if value is not None]
    if not given:
        raise typer.BadParameter("name at least one", param_hint="--apply-ms, --scan-ms, --snapshot-ms")
    for number, (name, value) in enumerate(given, 1):
        _set(pd, as_json, quiet=number < len(given), **{name: value})


@app.command()
def duplicate(
    pd: PdOption,
    share: Annotated[float, typer.Argument(metavar="SHARE", help="Share of requests, 0 to 1.")],
    as_json: JsonOption = False,
) -> None:
    """Deliver requests for change data twice."""
    _set(pd, as_json, duplicate_share=share)


@app.command("stop-store")
def stop_store(pd: PdOption, store: StoreArgument, as_json: JsonOption = False) -> None:
    """End a store as a kill would.

    Its regions get other leaders where most peers are alive.
    """
    _set(pd, as_json, stop_store=store)


@app.command("start-store")
def start_store(pd: PdOption, store: StoreArgument, as_json: JsonOption = False) -> None:
    """Start a store that is down, at its address."""
    _set(pd, as_json, start_store=store)


@app.command("cut-streams")
def cut_streams(
    pd: PdOption,
    store: Annotated[int, typer.Option(help="The store; 0: all stores.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """End the streams of change data that are open now."""
    _set(pd, as_json, cut_streams=store)


@app.command()
def congest(
    pd: PdOption,
    region: Annotated[int, typer.Option(help="The region; 0: all regions.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """End registrations of change data with the error Congested."""
    _set(pd, as_json, congest=region)


@app.command()
def quota(
    pd: PdOption,
    size: Annotated[
        int,
        typer.Argument(
            metavar="BYTES",
            min=0,
            max=(1 << 63) - 1,
            help="The most bytes of unread events; 0: the usual limit.",
        ),
    ],
    as_json: JsonOption = False,
) -> None:
    """Make streams of change data congest early.

    A stream that begins from now on keeps no more than this for a client that reads slowly.
    """
    _set(pd, as_json, quota_bytes=size)


@app.command("kv-error")
def kv_error(
    pd: PdOption,
    name: Annotated[str, typer.Argument(help="A region error, e.g. not_leader, server_is_busy; off: none.")],
    share: Annotated[float, typer.Option(help="Share of requests, 0 to 1.")] = 0.1,
    as_json: JsonOption = False,
) -> None:
    """Answer a share of requests with a region error."""
    _set(pd, as_json, kv_error={"name": "" if name == "off" else name, "share": share})


@app.command("capture-error")
def capture_error(
    pd: PdOption,
    name: Annotated[str, typer.Argument(help="An error of change data, e.g. epoch_not_match; off: none.")],
    share: Annotated[float, typer.Option(help="Share of registrations, 0 to 1.")] = 0.1,
    as_json: JsonOption = False,
) -> None:
    """Answer some registrations for change data with an error."""
    _set(pd, as_json, capture_error={"name": "" if name == "off" else name, "share": share})


def _either(state: str, yes: str, no: str) -> bool:
    if state not in (yes, no):
        raise typer.BadParameter(f"'{state}' is not one of {yes}, {no}")
    return state == yes


def _set(pd: str, as_json: bool, quiet: bool = False, **setting: Any) -> None:
    from tidegate.kvclient.pd import PdClient
    from tidegate.kvclient.upstream_control import UpstreamControl

    with reported(), PdClient(pd) as client:
        faults = UpstreamControl(client).fault(**setting)
    if quiet:
        return
    if as_json:
        print(json.dumps({"faults": [{"name": name, "value": value} for name, value in faults]}))
    else:
        print("\n".join(f"{name}: {value}" for name, value in faults) or "no faults")
