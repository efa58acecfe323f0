"""Kill -9 again and again under every kind of write: nothing acknowledged is lost, time never goes back."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import grpc

from tests.tikv.support import commit, pessimistic_lock, prewrite, put
from tests.tikv.test_server import WAIT_S, Wire
from tidegate.proto import kvrpcpb_pb2 as pb
from tidegate.tikv import keys
from tidegate.tikv.api_version import keyspace_prefix
from tidegate.tikv.server import EmbeddedUpstream

KILLS = 4
K = keyspace_prefix(b"r", 0)
MODES = ("two-phase", "async", "one-phase", "pessimistic", "raw")
SERVE = """
import sys, threading
from tidegate.tikv.server import EmbeddedUpstream
upstream = EmbeddedUpstream(sys.argv[1], regions=3, api_version=2)
print(upstream.start().pd, flush=True)
threading.Event().wait()
"""


class Log:
    """The answers that clients got."""

    def __init__(self) -> None:
        self.written: dict[bytes, tuple[str, int, int, bytes]] = {}
        """Key -> how it was written, start_ts, commit_ts (raw: 0), value."""
        self.raw: dict[bytes, bytes] = {}
        self.modes: set[str] = set()
        """In which ways something was written since the last check."""
        self.highest = 0

    def __len__(self) -> int:
        return len(self.written) + len(self.raw)


def serve(data_dir: Path) -> tuple[subprocess.Popen[str], str]:
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    command = [sys.executable, "-c", SERVE, str(data_dir)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
    assert child.stdout is not None
    return child, child.stdout.readline().strip()


def write_until_dead(address: str, name: str, mode: str, log: Log) -> None:
    wire = Wire(address)
    try:
        for i in range(100_000):
            if mode == "raw":
                write_raw(wire, b"%b-%d" % (name.encode(), i % 7), b"%d" % i, log)
            else:
                write(wire, b"t\x80%b-%06d" % (name.encode(), i), mode, b"x" * (i % 600), log)
    except grpc.RpcError:
        return  # the upstream was killed


def write_raw(wire: Wire, key: bytes, value: bytes, log: Log) -> None:
    request = wire.at(pb.RawPutRequest(key=K + key, value=value), keys.encode(K))
    request.context.api_version = pb.V2
    log.raw.pop(key, None)  # from here on either may be there
    assert not wire.kv.RawPut(request).error
    log.raw[key] = value
    log.modes.add("raw")


def write(wire: Wire, raw: bytes, mode: str, value: bytes, log: Log) -> None:
    at = keys.encode(raw)
    start_ts = wire.tso()
    more: dict[str, Any] = {"async": {"use_async_commit": True}, "one-phase": {"try_one_pc": True}}.get(
        mode, {}
    )
    if mode == "pessimistic":
        assert not wire.kv.KvPessimisticLock(wire.at(pessimistic_lock(start_ts, start_ts, raw), at)).errors
        action = pb.PrewriteRequest.DO_PESSIMISTIC_CHECK
        more = {"for_update_ts": start_ts, "pessimistic_actions": [action]}
    answer = wire.kv.KvPrewrite(wire.at(prewrite(start_ts, put(raw, value), lock_ttl=60_000, **more), at))
    assert not answer.errors
    commit_ts = answer.one_pc_commit_ts or answer.min_commit_ts
    if mode in ("two-phase", "pessimistic"):
        commit_ts = wire.tso()
        assert not wire.kv.KvCommit(wire.at(commit(start_ts, commit_ts, raw), at)).HasField("error")
    log.written[raw] = (mode, start_ts, commit_ts, value)
    log.modes.add(mode)
    log.highest = max(log.highest, commit_ts)


def check(address: str, log: Log) -> None:
    wire = Wire(address)
    now = wire.tso()
    assert now > log.highest, "time went back"
    for raw, (mode, start_ts, commit_ts, value) in log.written.items():
        at = keys.encode(raw)
        answer = wire.kv.KvGet(wire.at(pb.GetRequest(key=raw, version=commit_ts), at))
        if mode == "async" and answer.error.HasField("locked"):
            # Committed by its lock: anybody who asks finds out, and finishes it.
            lock = answer.error.locked
            assert (lock.lock_version, lock.use_async_commit) == (start_ts, True)
            assert lock.min_commit_ts == commit_ts
            assert not wire.kv.KvCommit(wire.at(commit(start_ts, commit_ts, raw), at)).HasField("error")
            answer = wire.kv.KvGet(wire.at(pb.GetRequest(key=raw, version=commit_ts), at))
        assert not answer.HasField("error"), (raw, mode)
        assert (answer.not_found, answer.value) == (False, value), (raw, mode)
        before = wire.kv.KvGet(wire.at(pb.GetRequest(key=raw, version=commit_ts - 1), at))
        assert before.not_found, (raw, mode)
    for key, value in log.raw.items():
        request = wire.at(pb.RawGetRequest(key=K + key), keys.encode(K))
        request.context.api_version = pb.V2
        assert wire.kv.RawGet(request).value == value, key
    log.written.clear()
    log.modes.clear()


def test_nothing_acknowledged_is_lost_however_often_it_is_killed(tmp_path: Path) -> None:
    rng = random.Random(5)
    log = Log()
    for kill in range(KILLS):
        child, address = serve(tmp_path)
        check(address, log)
        writers = [
            threading.Thread(target=write_until_dead, args=(address, f"{kill}-{mode}", mode, log))
            for mode in MODES
        ]
        for writer in writers:
            writer.start()
        enough = rng.randrange(20, 120)
        while len(log) < enough or len(log.modes) < len(MODES):
            assert child.poll() is None
            assert any(writer.is_alive() for writer in writers)
            writers[0].join(0.003)
        os.kill(child.pid, signal.SIGKILL)
        child.wait(WAIT_S)
        for writer in writers:
            writer.join(WAIT_S)
    with EmbeddedUpstream(tmp_path) as again:
        check(again.pd_addr, log)
