"""Who follows a store is woken by every change of its page of floors, and by nothing else."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tidegate.eventstore.floors import FLOORS, FloorPage
from tidegate.server import pulse
from tidegate.server.pulse import Pulse


def name(number: int) -> str:
    return f"{number:016x}"


class Follower:
    """Notes when it is woken, in one list with others."""

    def __init__(self, woken: list[str], who: str) -> None:
        self._woken, self._who = woken, who

    def wake(self) -> None:
        self._woken.append(self._who)


def test_each_change_of_a_page_wakes_once_owners_first_and_a_look_without_one_wakes_nobody(
    tmp_path: Path,
) -> None:
    stores = [tmp_path / "one", tmp_path / "two"]
    for store in stores:
        store.mkdir()
    woken: list[str] = []
    processor, owner, other = (Follower(woken, who) for who in ("processor", "owner", "other"))
    beats = Pulse()
    beats.follow(stores[0], processor.wake)
    beats.follow(stores[0], owner.wake, first=True)
    beats.follow(stores[1], other.wake)
    beats.look()
    assert woken == [], "there is no page yet"
    page = FloorPage(stores[0], "process")
    page.put([(name(1), 5, 1)])
    beats.look()
    assert woken == ["owner", "processor"]
    beats.look()
    assert woken == ["owner", "processor"]
    for change in (
        lambda: page.put([(name(1), 6, 1)]),
        lambda: page.put([(name(1), 6, 2)]),
        lambda: page.put([(name(1), 0, 0)]),
        lambda: page.put((name(number), 9, 1) for number in range(2, 500)),  # another file
        lambda: page.forget(name(3)),
        lambda: (stores[0] / FLOORS).unlink(),
        lambda: page.put([(name(4), 10, 1)]),
    ):
        woken.clear()
        change()
        beats.look()
        assert woken == ["owner", "processor"]
    page.close()


def test_a_follower_that_comes_back_is_woken_by_what_it_has_not_read(tmp_path: Path) -> None:
    page = FloorPage(tmp_path, "process")
    page.put([(name(1), 5, 1)])
    woken: list[str] = []
    one, stays = Follower(woken, "one"), Follower(woken, "stays")
    beats = Pulse()
    beats.follow(tmp_path, stays.wake)
    beats.follow(tmp_path, one.wake)
    beats.look()
    beats.leave(tmp_path, one.wake)
    beats.leave(tmp_path / "never", one.wake)
    woken.clear()
    page.put([(name(1), 6, 1)])
    beats.look()
    assert woken == ["stays"]
    beats.follow(tmp_path, one.wake)  # and reads 6
    page.put([(name(1), 7, 1)])
    beats.look()
    assert woken == ["stays", "stays", "one"]
    page.close()


def test_a_look_that_fails_does_not_end_the_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulse, "RETRY_S", 0.0)
    beats, looks = Pulse(), iter([OSError(5, "Input/output error"), None])
    seen = asyncio.Event()

    def look() -> None:
        found = next(looks)
        if found is not None:
            raise found
        seen.set()

    async def scenario() -> None:
        monkeypatch.setattr(beats, "look", look)
        running = asyncio.create_task(beats.run())
        async with asyncio.timeout(120):
            await seen.wait()
        running.cancel()

    asyncio.run(scenario())
