"""TiKV's own Go client works with the embedded upstream as with TiKV, while regions move and after a restart.

`main.go` is the client's side. It needs Go (1.22 or newer) and the modules of `go.sum`, fetched or cached.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tidegate.errors import InvalidInput, TidegateError
from tidegate.kvclient.backoff import Backoff
from tidegate.kvclient.lock_resolver import LockResolver
from tidegate.kvclient.pd import PdClient
from tidegate.kvclient.region_request import RegionRequester
from tidegate.model.span import Span
from tidegate.tikv.server import EmbeddedUpstream

HERE = Path(__file__).parent
GO_HOME = Path("/usr/local/go/bin/go")
"""Where Go's own archive is unpacked to."""
SECONDS = 1.5
ACCOUNTS, OPENING, LARGE = 24, 100, 4000
KINDS = {"optimistic", "pessimistic", "async", "one-phase"}
MOVES, ROUNDS = 5, 2
"""So many changes of regions, and looks at all locks, happen while it writes."""
WAIT_S = 120
LOCK_TTL_MS = 3000
"""How long client-go lets a small lock live: where a machine stops for that time, it may be ended."""


@pytest.fixture(scope="session")
def interop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program; built from Go's own cache after the first time."""
    go = shutil.which("go") or (str(GO_HOME) if GO_HOME.exists() else None)
    if go is None:
        pytest.skip("Go is not installed")
    env = os.environ | {"GOFLAGS": "-mod=readonly", "GOTOOLCHAIN": "local", "CGO_ENABLED": "0"}
    fetched = subprocess.run([go, "mod", "download"], cwd=HERE, env=env, capture_output=True, text=True)
    if fetched.returncode:
        pytest.skip(f"the modules of client-go are not there: {fetched.stderr.strip()[-300:]}")
    program = tmp_path_factory.mktemp("interop") / "interop"
    # Not optimised: a third less of the compiler's time. Without a debugger's tables: an eighth less again.
    quickly = ["-gcflags=all=-N -l -dwarf=0", "-ldflags=-s -w"]
    built = subprocess.run(
        [go, "build", *quickly, "-o", str(program), "."], cwd=HERE, env=env, capture_output=True, text=True
    )
    assert not built.returncode, built.stderr
    return program


def move(upstream: EmbeddedUpstream, chance: Random) -> bool:
    """One change of some region; whether there was one."""
    regions = upstream.regions.all
    region = chance.choice(regions)
    kind = chance.choice(("split", "merge", "transfer", "transfer"))
    try:
        if kind == "split" and len(regions) < 12:
            upstream.operators.split_at([upstream.split_key(region.id)])
        elif kind == "merge" and len(regions) > 3:
            upstream.operators.merge(region.id, upstream.neighbour(region.id))
        else:
            upstream.operators.transfer(region.id, chance.choice(region.stores))
    except InvalidInput:
        return False
    return True


@contextmanager
def eager_cleaner(pd_addr: str) -> Iterator[list[int]]:
    """Do all the time, for all keys, what a capture does for spans that do not advance; one entry a round."""
    done, rounds = threading.Event(), list[int]()

    def clean() -> None:
        with PdClient(pd_addr) as pd:
            resolver = LockResolver(RegionRequester(pd))
            while not done.wait(0.01):
                with suppress(TidegateError):  # regions move meanwhile
                    rounds.append(resolver.resolve_span(Span(b"", b""), pd.tso(), Backoff(5000)).keys)

    thread = threading.Thread(target=clean)
    thread.start()
    try:
        yield rounds
    finally:
        done.set()
        thread.join()


@pytest.mark.slow
@pytest.mark.parametrize("api_version", [1, 2])
def test_client_go_writes_while_regions_move_and_rereads_after_a_restart(
    interop: Path, tmp_path: Path, api_version: int
) -> None:
    """Client-go writes in every way that it has."""
    chance = Random(api_version)
    moves = 0
    with (
        EmbeddedUpstream(tmp_path, stores=3, api_version=api_version) as upstream,
        eager_cleaner(upstream.pd_addr) as cleaned,
    ):
        child = subprocess.Popen(
            [interop, "write", upstream.pd_addr, str(api_version), str(SECONDS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        for _ in range(round(WAIT_S / 0.1)):
            moves += move(upstream, chance)
            if child.stdin is not None and moves >= MOVES and len(cleaned) > ROUNDS:
                child.stdin.close()  # it continues until stdin ends, however long all that takes
                child.stdin = None
            try:
                child.wait(0.1)
                break
            except subprocess.TimeoutExpired:
                continue
        child.kill()
        out, failure = child.communicate()
        assert out, failure
        found = json.loads(out)
        check(found)
        assert child.stdin is None, f"{moves} moves, {len(cleaned)} rounds of the cleaner"
        young = [ended for ended in found["rolled_back"] if ended["age_ms"] < LOCK_TTL_MS]
        assert not young, "nothing that lives was ended by it"
    with EmbeddedUpstream(tmp_path) as upstream:
        again = subprocess.run(
            [interop, "read", upstream.pd_addr, str(api_version)],
            capture_output=True,
            text=True,
            timeout=WAIT_S,
        )
        assert not again.returncode, again.stderr
        assert json.loads(again.stdout)["reading"] == found["reading"]


def check(found: dict[str, Any]) -> None:
    """Check what holds however the transactions met each other and the regions' changes."""
    reading, committed = found["reading"], found["committed"]
    assert set(committed) == KINDS, found
    assert set(found["modes"]) == {"2pc", "async_commit", "1pc"}, "each in its own way"
    assert reading["sum"] == ACCOUNTS * OPENING
    assert reading["large"] == LARGE
    done = sum(committed.values())
    assert done <= reading["logged"] <= done + found["undetermined"], (
        "what was committed is there, and no more"
    )
    assert reading["keys"] == ACCOUNTS + LARGE + reading["logged"]
    assert reading["raw_keys"] == 300
    assert found["deadlock"], "of two that wait for each other one gets an error"
    assert found["exists"], "an insert of what is there is refused"
    assert found["regions"] == 4
