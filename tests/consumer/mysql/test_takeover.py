"""When a taker at TiDB may read what an earlier consumer has done. Pure: each look is made up."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from tidegate.consumer.mysql.takeover import (
    QUIET_S,
    TAKING,
    Look,
    Session,
    Step,
    Takeover,
    holder_in_words,
    holder_of,
    may_end,
    name_of,
    session_of,
)

DIGEST, OTHER = "a" * 40, "b" * 40
TOKEN = 7


def session(token: int, number: int = 1, lane: int | None = None) -> Session:
    return Session(number, "tidb-0:10080", "client:1", token, lane)


def look(*sessions: Session, silent: Sequence[str] = (), jobs: Sequence[str] = ()) -> Look:
    return Look(sessions, silent, jobs)


def test_a_name_says_whose_session_it_is() -> None:
    for lane in (None, 0, 31):
        name = name_of(DIGEST, 12, lane)
        assert len(name) <= 64, "TiDB cuts a longer one"
        assert session_of(DIGEST, 5, "s", "c", name) == Session(5, "s", "c", 12, lane)
        assert session_of(OTHER, 5, "s", "c", name) is None
    for name in ("", f"tidegate.{DIGEST}", f"tidegate.{DIGEST}.x", f"x.{name_of(DIGEST, 1)}"):
        assert session_of(DIGEST, 5, "s", "c", name) is None


def test_sessions_with_a_lower_token_are_ended_and_no_others() -> None:
    older, lane, own, later = session(3, 1), session(6, 2, 0), session(TOKEN, 3), session(8, 4)
    step = Takeover(TOKEN).after(look(older, lane, own, later), 0)
    assert step.kill == (older, lane)
    assert not step.settled
    assert "connection 1 of TiDB server tidb-0:10080, token 3" in step.waits_for


@pytest.mark.parametrize(
    "seen",
    [look(session(3)), look(silent=["TiDB server timeout"]), look(jobs=["DDL job 5 (add index, running)"])],
    ids=["session", "silent server", "job"],
)
def test_whatever_may_still_act_is_waited_for_and_begins_the_quiet_again(seen: Look) -> None:
    takeover = Takeover(TOKEN)
    assert takeover.after(look(), 0) == Step()
    found = takeover.after(seen, QUIET_S)
    assert (found.settled, bool(found.waits_for)) == (False, True)
    assert takeover.after(look(), QUIET_S + 1) == Step(), "the quiet before it does not count"
    assert not takeover.after(look(), 2 * QUIET_S + 0.9).settled
    assert takeover.after(look(), 2 * QUIET_S + 1).settled


def test_before_the_token_is_raised_a_replaced_consumer_ends_only_its_own() -> None:
    sessions = [session(3, 1), session(5, 2), session(6, 3, 0)]
    assert may_end(sessions, None) == sessions
    assert may_end(sessions, 5) == sessions[:2]


def test_a_taker_that_has_no_token_yet_is_ended_only_by_one_that_starts() -> None:
    """It may have the row of `progress` locked, but nothing of it can be a statement that was noted."""
    taking = session_of(DIGEST, 1, "s", "c", name_of(DIGEST, TAKING))
    assert taking is not None
    assert may_end([taking], None) == [taking]
    assert may_end([taking], TOKEN) == [], "one that takes the target again is older than it"
    assert Takeover(TOKEN).after(look(taking), 0) == Step()
    assert holder_of([taking]) is None


def test_the_holder_is_the_control_connection_with_the_newest_token() -> None:
    control = session(16, 3)
    assert holder_of([session(5, 1), session(17, 2, 0), control]) is control
    assert holder_of([session(16, 2, 0)]) is None
    assert holder_of([]) is None


def test_a_holder_is_unknown_while_a_server_does_not_answer() -> None:
    control, silent = session(16, 3), ["TiDB server timeout"]
    assert holder_in_words(look(), "db") == ""
    assert holder_in_words(look(control), "db") == "connection 3 of db from client:1"
    assert holder_in_words(look(silent=silent), "db").startswith("unknown, because not all")
    assert holder_in_words(look(control, silent=silent), "db").endswith(
        "of the others connection 3 of db from client:1"
    )


# --- a cluster in which all of it happens at random


@dataclass
class Cluster:
    """One session of an earlier consumer that has noted a statement; its server may stop answering."""

    random: random.Random
    listed: bool = True
    sent: bool = False
    """The statement is on its way to the server, or in it."""
    job: bool = False
    running: bool = False
    answers: bool = True
    late: list[float] = field(default_factory=list)
    """When the statement took effect."""

    def look(self) -> Look:
        # In the order in which the edge reads.
        sessions = [session(3)] if self.listed and self.answers else []
        silent = [] if self.answers else ["no answer"]
        self.act(0)
        return look(*sessions, silent=silent, jobs=["job"] if self.job else [])

    def act(self, now: float) -> None:
        """Something that may happen at any time."""
        match self.random.randrange(6):
            case 0 if self.listed and not self.sent:
                self.sent = True
            case 1 if self.listed and self.sent:
                self.job, self.listed = True, self.random.random() < 0.5
            case 2 if self.job:
                self.job = False
                self.late.append(now)
            case 3:
                self.answers = self.random.random() < 0.7

    def kill(self) -> None:
        """It ends the session, unless its statement is being handed in."""
        if not self.sent or self.job:
            self.listed = False


@pytest.mark.parametrize("seed", range(200))
def test_when_it_is_settled_nothing_comes_any_more(seed: int) -> None:
    cluster, takeover, now = Cluster(random.Random(seed)), Takeover(TOKEN), 0.0
    while not (step := takeover.after(cluster.look(), now)).settled:
        for _ in step.kill:
            cluster.kill()
        now += 0.25
        cluster.act(now)
        assert now < 1000
    assert not cluster.listed
    assert not cluster.job
    before = list(cluster.late)
    for _ in range(50):
        cluster.act(now)
    assert cluster.late == before
