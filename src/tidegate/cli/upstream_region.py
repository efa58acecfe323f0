"""`tidegate upstream region ...`: lists the regions of an upstream, splits, merges and moves them, changes
peers.

`list` also works on a real cluster; the other commands only on `tidegate upstream run`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.cli.client import reported
from tidegate.errors import TidegateError

if TYPE_CHECKING:
    from tidegate.kvclient.pd import PeerInfo
    from tidegate.kvclient.region_cache import RegionInfo
    from tidegate.kvclient.upstream_control import RegionStatus, UpstreamControl

app = typer.Typer(help="Show, split, merge and move regions.", no_args_is_help=True)

PdOption = Annotated[str, typer.Option("--pd", help="PD's address, host:port.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")]
RegionArgument = Annotated[int, typer.Argument(metavar="REGION", help="The region's id, see `region list`.")]


@app.callback()
def group() -> None:
    """Show, split, merge and move regions."""


@app.command("list")
def list_regions(
    pd: PdOption,
    limit: Annotated[int, typer.Option(min=0, help="The most regions to show; 0: all.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """List the regions in key order.

    Each is shown with its range (hex of encoded keys), epoch, leader, and its peers with their roles.
    """
    from tidegate.kvclient.pd import PdClient

    with reported(), PdClient(pd) as client:
        start, shown = b"", 0
        while True:
            found = client.scan_peers(start, b"", min(1024, limit - shown) if limit else 1024)
            for region, peers in found:
                print(_json(region, peers) if as_json else _line(region, peers))
            shown += len(found)
            if not found or not found[-1][0].end_key or (limit and shown >= limit):
                return
            start = found[-1][0].end_key


@app.command()
def split(
    pd: PdOption,
    region: Annotated[
        int,
        typer.Argument(metavar="[REGION]", help="The region's id; default: the region that holds the keys."),
    ] = 0,
    key: Annotated[
        list[str] | None,
        typer.Option(help="Split at this key, in hex, not encoded; may be repeated. Default: the middle."),
    ] = None,
    encoded: Annotated[bool, typer.Option(help="The keys are encoded, as `list` shows them.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Split a region at keys, or in the middle of its bytes."""
    if not region and not key:
        raise typer.BadParameter("name a region, or at least one --key", param_hint="REGION")
    keys = [_key(text, encoded) for text in key or ()]
    with _control(pd) as control:
        _show(control.split(region, keys), as_json)


@app.command()
def merge(
    pd: PdOption,
    region: RegionArgument,
    into: Annotated[
        int,
        typer.Option(
            help="The neighbour that takes it in; default: the next one, or the one before if it is the last."
        ),
    ] = 0,
    as_json: JsonOption = False,
) -> None:
    """Merge a region into a neighbour; shows the result. Its peers move to the neighbour's stores first."""
    with _control(pd) as control:
        _show(control.merge(region, into), as_json)


@app.command()
def transfer(
    pd: PdOption,
    region: RegionArgument,
    to_store: Annotated[int, typer.Option(help="The store whose peer becomes the leader.")],
    as_json: JsonOption = False,
) -> None:
    """Move the leadership of a region to another store."""
    with _control(pd) as control:
        _show(control.transfer(region, to_store), as_json)


@app.command()
def move(
    pd: PdOption,
    region: RegionArgument,
    from_store: Annotated[int, typer.Option(help="The store that gives its peer up.")],
    to_store: Annotated[int, typer.Option(help="The store that gets the peer.")],
    as_json: JsonOption = False,
) -> None:
    """Move a region's peer to another store; a leader stays leader."""
    with _control(pd) as control:
        _show(control.move(region, from_store, to_store), as_json)


@app.command()
def peers(
    pd: PdOption,
    region: RegionArgument,
    voter: Annotated[
        list[int] | None,
        typer.Option(metavar="STORE", help="A store that gets a voter; its learner becomes one."),
    ] = None,
    learner: Annotated[
        list[int] | None,
        typer.Option(metavar="STORE", help="A store that gets a learner; its voter becomes one."),
    ] = None,
    remove: Annotated[
        list[int] | None, typer.Option(metavar="STORE", help="A store that gives its peer up.")
    ] = None,
    stay: Annotated[
        bool, typer.Option("--stay", help="Remain in the joint state of several changes.")
    ] = False,
    leave: Annotated[bool, typer.Option("--leave", help="End the joint state.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Change a region's voters and learners.

    Options may be repeated. Several changes are made jointly.
    """
    if bool(voter or learner or remove) is leave:
        raise typer.BadParameter("name voters, learners or removals, or say --leave", param_hint="changes")
    with _control(pd) as control:
        _show(control.change_peers(region, voter or (), learner or (), remove or (), stay), as_json)


def _key(text: str, encoded: bool) -> bytes:
    from tidegate.tidb.memcomparable import decode_bytes, encode_bytes

    try:
        key = bytes.fromhex(text)
    except ValueError:
        raise typer.BadParameter(
            f"'{text}' is not hex, for example 74 for the key 't'", param_hint="--key"
        ) from None
    if not encoded:
        return encode_bytes(key)
    try:
        decode_bytes(key)
    except TidegateError:
        raise typer.BadParameter(f"'{text}' is not an encoded key", param_hint="--key") from None
    return key


@contextmanager
def _control(pd: str) -> Iterator[UpstreamControl]:
    from tidegate.kvclient.pd import PdClient
    from tidegate.kvclient.upstream_control import UpstreamControl

    with reported(), PdClient(pd) as client:
        yield UpstreamControl(client)


def _show(regions: Sequence[RegionStatus], as_json: bool) -> None:
    for region in regions:
        if as_json:
            members = dataclasses.asdict(region)
            members |= {"start_key": region.start_key.hex(), "end_key": region.end_key.hex()}
            print(json.dumps(members))
        else:
            leader = f"store {region.leader_store}" if region.leader_store else "none"
            print(
                f"region {region.id}: {_range(region.start_key, region.end_key)}, version {region.version}, "
                f"conf {region.conf_ver}, leader {leader} (term {region.term}), "
                f"peers on {_peers(region.stores, region.roles)}"
            )


def _peers(stores: Sequence[int], roles: Sequence[str]) -> str:
    return ", ".join(
        f"{store}" if role == "voter" else f"{store} ({role})"
        for store, role in zip(stores, roles, strict=True)
    )


def _line(region: RegionInfo, peers: Sequence[PeerInfo]) -> str:
    leader = next((f"store {peer.store_id}" for peer in peers if peer.leads), "none")
    return (
        f"region {region.id}: {_range(region.start_key, region.end_key)}, version {region.epoch_version}, "
        f"conf {region.conf_ver}, leader {leader}, "
        f"peers on {_peers([peer.store_id for peer in peers], [peer.role for peer in peers])}"
    )


def _json(region: RegionInfo, peers: Sequence[PeerInfo]) -> str:
    members = dataclasses.asdict(region)
    if not any(peer.leads for peer in peers):
        members |= {"leader_peer_id": 0, "leader_store_id": 0}
    members |= {"start_key": region.start_key.hex(), "end_key": region.end_key.hex()}
    return json.dumps(members | {"peers": [dataclasses.asdict(peer) for peer in peers]})


def _range(start: bytes, end: bytes) -> str:
    return f"[{start.hex() or '-inf'}, {end.hex() or '+inf'})"
