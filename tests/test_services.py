"""`tools/services --owner`: what a test run has started ends with it, however it ends."""

from __future__ import annotations

import runpy
import signal
import subprocess

import pytest

from tests.fixtures.kafka import SERVICES


def test_a_service_ends_when_its_owner_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_SERVICES_INSIDE", "1")
    end_with = runpy.run_path(str(SERVICES), run_name="services")["end_with"]
    owner, service = (subprocess.Popen(["sleep", "300"], start_new_session=True) for _ in range(2))
    end_with(owner.pid, service.pid)
    owner.kill()
    owner.wait()
    assert service.wait(60) == -signal.SIGKILL
    late = subprocess.Popen(["sleep", "300"], start_new_session=True)
    end_with(owner.pid, late.pid)
    assert late.wait(60) == -signal.SIGKILL, "its owner was gone before it was there"
