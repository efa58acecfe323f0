"""Captures take a changefeed over in every order of events: `takeover` tries them all.

`make explore` is the long form, and `python -m tests.control.takeover --rewrite` writes the traces again.
"""

from __future__ import annotations

from dataclasses import fields

import pytest
from tests.control.takeover import CI, REMOVED, TRACES, Bounds, Rules, bounds_of, explore, traces


def test_in_every_order_of_events_each_row_is_delivered_once_and_in_order() -> None:
    for bounds in (Bounds(2, 2, 2, 1), CI, REMOVED):
        found = explore(bounds)
        assert found.violation == "", "\n".join(found.trace)
        assert found.delivered > 100, "it must get to the end, in many ways"
        print(f"{bounds}: {found.states:,} states, {found.transitions:,} transitions")


@pytest.mark.parametrize("rule", [field.name for field in fields(Rules)])
def test_without_a_rule_a_violation_is_found_and_is_the_one_on_file(rule: str) -> None:
    found = explore(bounds_of(rule), Rules(**{rule: False}))
    assert found.violation, f"nothing shows that '{rule}' is needed"
    assert [*found.trace, f"--> {found.violation}"] == traces(TRACES.read_text())[rule]
