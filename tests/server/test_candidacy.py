"""An elected capture knows which other captures there are."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from tidegate.etcd.election import Candidate
from tidegate.server.captures.candidacy import Candidacy
from tidegate.server.captures.lifetime import Lifetime
from tidegate.server.captures.membership import CaptureInfo


def test_an_elected_capture_knows_that_the_last_owner_is_gone() -> None:
    """Otherwise all changefeeds would wait for its answer before they begin."""
    me, last = (CaptureInfo(name, name, f"{name}:1", "1") for name in "ab")

    async def elected() -> None:
        member: Any = SimpleNamespace(
            me=me,
            stand=lambda: None,
            owner=lambda: Candidate("a", "key of a", 7),
            is_mine=lambda owner: owner.key == "key of a",
            captures=lambda: [me],
        )
        client: Any = None
        candidacy = Candidacy(client, member, "etcd", Lifetime(), lambda: None)
        candidacy.captures = (me, last)  # read before the last owner's session ended
        assert (await candidacy.until_elected()).revision == 7
        assert candidacy.others() == {}

    asyncio.run(elected())


def test_a_damaged_key_of_another_capture_does_not_end_the_elected_one() -> None:
    """Each capture would be elected in turn, and end."""

    def damaged() -> list[CaptureInfo]:
        return [CaptureInfo.from_bytes(b"x")]

    async def elected() -> None:
        me = CaptureInfo("a", "a", "a:1", "1")
        member: Any = SimpleNamespace(
            me=me,
            stand=lambda: None,
            owner=lambda: Candidate("a", "key of a", 7),
            is_mine=lambda owner: True,
            captures=damaged,
        )
        client: Any = None
        candidacy = Candidacy(client, member, "etcd", Lifetime(), lambda: None)
        assert (await candidacy.until_elected()).revision == 7

    asyncio.run(elected())
