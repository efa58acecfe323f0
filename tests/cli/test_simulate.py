"""`tidegate simulate`: what it prints, and how it ends."""

from __future__ import annotations

import re

import pytest
from typer.testing import CliRunner

from tidegate.cli import simulate
from tidegate.cli.main import app
from tidegate.simulator import run
from tidegate.simulator.scenarios import SCENARIOS
from tidegate.simulator.summary import outcome_of


def test_a_seed_prints_a_summary() -> None:
    done = CliRunner().invoke(app, ["simulate", "--scenario", "owner-dies", "--seed", "3"])
    assert done.exit_code == 0
    for word in ("no promise was broken", "virtual seconds", "owner killed", "checks", "owner dies"):
        assert word in done.output


def test_many_seeds_are_counted_together() -> None:
    done = CliRunner().invoke(app, ["simulate", "--scenario", "calm", "--seeds", "3"])
    assert done.exit_code == 0
    assert "calm, 3 seeds from 0 on: no promise was broken" in done.output


def test_many_seeds_without_a_terminal_print_how_far_they_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(simulate, "ALONE", 1)
    outcomes = [outcome_of("calm", 0)] * 20
    assert list(simulate._watched(outcomes, 20)) == outcomes
    assert capsys.readouterr().err.splitlines() == [f"{number} of 20 seeds" for number in range(2, 21, 2)]


def test_what_captures_log_is_not_printed(caplog: pytest.LogCaptureFixture) -> None:
    outcome_of("storm", 0)  # where captures log that one of them gets no ranges
    assert not caplog.records


def test_a_trace_is_a_timeline() -> None:
    done = CliRunner().invoke(app, ["simulate", "--scenario", "calm", "--trace"])
    times = [float(found) for found in re.findall(r"^ *(\d+\.\d{3})  ", done.output, re.MULTILINE)]
    assert times == sorted(times)
    assert re.search(r"receives from \w: run \d+, up to", done.output)


def test_an_unknown_scenario_lists_those_that_there_are() -> None:
    done = CliRunner().invoke(app, ["simulate", "--scenario", "no-such"])
    assert done.exit_code == 2
    for name in SCENARIOS:
        assert name in done.output


def test_a_violation_prints_the_seed_the_reason_and_the_last_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "HEAL_S", -1.0)  # nothing arrives within that
    done = CliRunner().invoke(app, ["simulate", "--scenario", "calm", "--seed", "5", "--seeds", "2"])
    assert done.exit_code == 1
    assert "seed 5 of calm breaks a promise" in done.output
    assert "the checkpoint is" in done.output
    assert "all ranges are delivered" in done.output
    assert "--seed 5 --trace" in done.output


def test_seeds_in_several_processes_give_what_one_process_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulate, "ALONE", 1)
    monkeypatch.setattr(simulate, "CHUNK", 1)
    several = list(simulate._outcomes("calm", range(3), whole=False))
    assert several == [outcome_of("calm", seed) for seed in range(3)]
