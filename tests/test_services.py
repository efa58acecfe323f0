"""`tools/services`: what a test run has started ends with it, and no jar is used that is not as pinned."""

from __future__ import annotations

import fcntl
import hashlib
import runpy
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.kafka import SERVICES
from tidegate.errors import InvalidInput


def test_a_service_ends_when_its_owner_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_SERVICES_INSIDE", "1")
    end_with = runpy.run_path(str(SERVICES), run_name="services")["end_with"]
    owner, service = (subprocess.Popen(["sleep", "300"], start_new_session=True) for _ in range(2))
    end_with(owner.pid, service.pid)
    owner.kill()
    owner.wait()
    assert service.wait(240) == -signal.SIGKILL
    late = subprocess.Popen(["sleep", "300"], start_new_session=True)
    end_with(owner.pid, late.pid)
    assert late.wait(240) == -signal.SIGKILL, "its owner was gone before it was there"


class Jars:
    """`fetch_kafka` on a folder of its own, with two jars; a fetch takes `served`."""

    def __init__(self, folder: Path) -> None:
        self.fetch_kafka = runpy.run_path(str(SERVICES), run_name="services")["fetch_kafka"]
        self.libs, self.served, self.fetches = folder / "cache/kafka", {"a-1.jar": b"aa", "b-2.jar": b"bb"}, 0
        (folder / "tools").mkdir()
        (folder / "tools/kafka.jars").write_text("org.a a 1\norg.b b 2\n")
        lines = [f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in self.served.items()]
        (folder / "tools/kafka.sha256").write_text("".join(lines))
        moved = {
            "ROOT": folder,
            "CACHE": folder / "cache",
            "KAFKA_LIBS": self.libs,
            "retrieve": self.retrieve,
        }
        self.fetch_kafka.__globals__.update(moved)

    def retrieve(self, title: str, wanted: list[Any], work: Path) -> None:
        self.fetches += 1
        (work / "libs").mkdir()
        for name, data in self.served.items():
            (work / "libs" / name).write_bytes(data)

    def held(self) -> dict[str, bytes]:
        return {file.name: file.read_bytes() for file in self.libs.iterdir()}


def test_cached_jars_are_verified_at_every_use_and_refetched_if_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEGATE_SERVICES_INSIDE", "1")
    jars = Jars(tmp_path)
    for _ in range(2):
        assert jars.fetch_kafka() == jars.libs
        assert (jars.held(), jars.fetches) == (jars.served, 1)
    damages = [
        lambda: (jars.libs / "a-1.jar").write_bytes(b"ab"),
        lambda: (jars.libs / "a-1.jar").write_bytes(b""),
        lambda: (jars.libs / "b-2.jar").unlink(),
        lambda: (jars.libs / "0-planted.jar").write_bytes(b"first on the class path"),
    ]
    for number, damage in enumerate(damages, 2):
        damage()
        jars.fetch_kafka()
        assert (jars.held(), jars.fetches) == (jars.served, number)
    (jars.libs / "a-1.jar").write_bytes(b"ab")
    jars.served = {"a-1.jar": b"??", "b-2.jar": b"bb"}
    with pytest.raises(InvalidInput, match=r"differ from tools/kafka\.sha256"):
        jars.fetch_kafka()
    assert sorted(file.name for file in (tmp_path / "cache").iterdir()) == ["kafka", "kafka.lock"]


def test_a_package_that_another_process_installs_is_not_installed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEGATE_SERVICES_INSIDE", "1")
    need_debian = runpy.run_path(str(SERVICES), run_name="services")["need_debian"]
    looked, found, installed = threading.Event(), list[str](), list[Any]()

    def which(binary: str) -> str | None:
        looked.set()
        return found[0] if found else None

    changed = {"CACHE": tmp_path, "which": which, "install": lambda *line: installed.append(line)}
    need_debian.__globals__.update(changed)
    answers: list[str] = []
    thread = threading.Thread(target=lambda: answers.append(need_debian("etcd-server", "etcd")))
    with (tmp_path / "debian.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        thread.start()
        assert not looked.wait(0.3), "the other process has not ended yet"
        found.append("/usr/bin/etcd")
    thread.join(60)
    assert (answers, installed) == (["/usr/bin/etcd"], [])
