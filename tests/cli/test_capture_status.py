"""The output of `tidegate capture status` and `list`."""

from __future__ import annotations

from typing import Any

from tidegate.cli.capture import WAITING_SHOWN, described, line_of

STATUS: dict[str, Any] = {
    "version": "0.1.0",
    "id": "4b1c",
    "cluster_id": "77",
    "pid": 12,
    "waiting_for": "",
    "clock": "",
    "application": {"pid": 13, "workers": 6, "at_work": [], "waiting": []},
}


def shown(
    working: dict[str, Any] | None = None, states: dict[str, int] | None = None, **status: Any
) -> list[str]:
    known = STATUS | {"application": STATUS["application"] | (working or {})} | status
    return described(known, states).splitlines()


def test_workers_and_those_who_wait_for_one_are_named() -> None:
    at_work = [
        {"pid": 1200, "changefeed": "default/slow", "what": "deliver c3c21f80db3d35dd", "seconds": 14},
        {"pid": 1201, "changefeed": "default/b", "what": "the start of default/b", "seconds": 0},
    ]
    waiting = [f"default/w{number}" for number in range(WAITING_SHOWN + 2)]
    lines = shown({"at_work": at_work, "waiting": waiting}, {"normal": 2, "warning": 1})
    assert "changefeeds  2 normal, 1 warning" in lines
    assert "workers      6, of which 2 at work" in lines
    assert f"waiting      for a worker: {', '.join(waiting[:WAITING_SHOWN])} and 2 more" in lines
    assert lines[-3:] == [
        "WORKER  CHANGEFEED    DOES                      SECONDS",
        "1200    default/slow  deliver c3c21f80db3d35dd  14",
        "1201    default/b     the start of default/b    0",
    ]


def test_a_capture_that_waits_or_has_nothing_to_do_says_so() -> None:
    waiting = shown(waiting_for="PD at x to answer", cluster_id="", application=None)
    assert waiting[-1] == "waiting for  PD at x to answer"
    assert "cluster      -" in waiting
    assert "changefeeds  -" in waiting, "not known yet"
    assert "changefeeds  none" in shown(states={})
    assert shown(clock="upstream's clock is set back")[5] == "clock        upstream's clock is set back"
    assert shown()[-1] == "workers      6, of which 0 at work"
    assert shown({"pid": 0})[-1] == "workers      none yet: Spark is not running, or is about to start"


def test_the_list_has_the_names_that_logs_and_divisions_have() -> None:
    own = {"name": "1c9c0dd0a4c1", "changefeeds": 3, "tables": 7, "drained": True, "left": 7}
    own["version"] = "0.4.0"
    one = {"id": "1c9c", "is_owner": True, "address": "10.0.0.1:8300", "cluster_id": "7", "tidegate": own}
    assert line_of(one) == ("1c9c0dd0a4c1", "yes", "10.0.0.1:8300", "0.4.0", "3", "7 (drained)", "1c9c")
    del one["tidegate"]
    assert line_of(one | {"is_owner": False}) == ("", "", "10.0.0.1:8300", "", "", "", "1c9c"), (
        "TiCDC's server"
    )
