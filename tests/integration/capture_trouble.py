"""Lets one fault after another happen to captures that share a changefeed, and measures each."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter, defaultdict
from typing import Any

import httpx

from tests.fixtures.etcd import Etcd
from tests.integration.capture_faults import Fault, What
from tests.integration.captures import FEED, Captures
from tests.integration.cluster import eventually

TABLES = ("bank.accounts", "bank.transfers", "bank.orders")
SETTLE_S = 6.0
"""The owner gives ranges to a capture 5 s after its first answer, and lets it pull them before."""
SHUNNED_S = 700.0
"""A capture that is lost again and again gets no ranges for up to 10 min."""


class Trouble:
    """`taken`: seconds of each fault, by its name."""

    def __init__(self, captures: Captures, etcd: Etcd, seed: int) -> None:
        self.captures, self.etcd, self._chance = captures, etcd, random.Random(seed)
        self.taken: dict[str, list[float]] = defaultdict(list)
        self._struck = Counter[str]()
        """How often each capture was struck."""

    def strike(self, fault: Fault) -> None:
        """Let it happen, measure it, repair it, and wait until all captures deliver again."""
        names = self.captures.names
        owner = self.captures.owner(names)
        others = names.replace(owner, "")
        # In turn, because a capture gets no ranges for longer after each of its failures.
        name = owner if fault.owner else min(others, key=lambda one: (self._struck[one], one))
        self._struck[name] += 1
        match fault.what:
            case What.NOTHING:
                end = time.monotonic() + fault.seconds
                found = [self.captures.longest_pause_s(lambda: time.monotonic() > end)]
            case What.DRAINED:
                found = self._drain(name)
            case What.MOVED:
                found = self._move_and_back()
            case What.CUT_BETWEEN_OTHERS:
                found = [self._cut_between(others, fault.seconds)]
            case _:
                found = [self._lose(name, owner, fault)]
        self.taken[fault.name] += found
        seconds = ", ".join(f"{one:.1f} s" for one in found)
        who = f"of {name}, the owner is {owner}"
        print(f"{time.strftime('%X')} {fault.name} ({who}): {seconds or 'nothing to move'}", flush=True)
        self.captures.owner(names)
        self.captures.deliver(names, SHUNNED_S)
        time.sleep(SETTLE_S)

    def _lose(self, name: str, owner: str, fault: Fault) -> float:
        """Seconds until the next owner has delivered what came until the fault; or, if another capture is
        lost, the longest pause of the checkpoint until the others have its ranges.
        """
        captures, since = self.captures, time.monotonic()
        self._begin(name, owner, fault)
        if fault.what in (What.ETCD_KILLED, What.CUT_FROM_OWNER):
            ts = captures.now()
            time.sleep(fault.seconds)
            self._repair(name, fault)
            return captures.passes(ts, time.monotonic(), captures.names)
        if fault.owner:
            taken = captures.passes(captures.now(), since, captures.names.replace(name, ""))
        else:
            # A capture that only loses etcd delivers for a while, so its last rows say nothing.
            taken = captures.longest_pause_s(lambda: self.has_left(name))
        time.sleep(max(0.0, since + fault.seconds - time.monotonic()))
        self._repair(name, fault)
        return taken

    def _begin(self, name: str, owner: str, fault: Fault) -> None:
        captures = self.captures
        match fault.what:
            case What.KILLED:
                captures.kill(name)
            case What.STOPPED:
                captures.send(name, signal.SIGSTOP)
            case What.ENDED:
                captures.children[name].ask_to_end()
                captures.children[name].wait(60)
            case What.RESIGNED:
                captures.ask("POST", "/owner/resign")
            case What.ISOLATED:
                captures.isolate(name)
            case What.NO_ETCD:
                captures.to_etcd[name].lose()
            case What.CUT_FROM_OWNER | What.LOST_TO_OWNER:
                one, other = self._chance.sample([name, owner], 2)
                captures.cut(one, other, one_way=fault.one_way)
            case What.ETCD_KILLED:
                self.etcd.kill()

    def _repair(self, name: str, fault: Fault) -> None:
        match fault.what:
            case What.KILLED:
                self.captures.start_capture(name)
            case What.STOPPED:
                self.captures.send(name, signal.SIGCONT)
            case What.ENDED:
                self.captures.children.pop(name).end()
                self.captures.start_capture(name)
            case What.ETCD_KILLED:
                self.etcd.start()
        self.captures.restore()

    def _cut_between(self, others: str, seconds: float) -> float:
        """The longest pause of the checkpoint; captures that are not the owner need not reach each other."""
        one, other = others[:2]
        self.captures.cut(one, other)
        end = time.monotonic() + seconds
        longest = self.captures.longest_pause_s(lambda: time.monotonic() > end)
        self.captures.restore()
        return longest

    def _drain(self, name: str) -> list[float]:
        """The longest pauses of the checkpoint during a drain and during the return."""
        path = f"/captures/{self.captures.id_of(name)}/drain"
        self.captures.ask("PUT", path)
        there = self.captures.longest_pause_s(lambda: self.has_left(name))
        time.sleep(SETTLE_S)
        self.captures.ask("DELETE", path)
        return [there, self.captures.longest_pause_s(lambda: self._is_back(name))]

    def has_left(self, name: str) -> bool:
        """Whether others deliver all ranges."""
        there = {address for address, _ in self.captures.shares()}
        gone = ""  # the address of a capture that has no session any more
        return bool(there) and not there & {gone, self.captures.addresses[name]}

    def _is_back(self, name: str) -> bool:
        """Whether all ranges are delivered, and some of them by this capture."""
        return any(address == self.captures.addresses[name] for address, _ in self.captures.shares())

    def _move_and_back(self) -> list[float]:
        """The longest pauses of the checkpoint. Back, because a capture may be left without ranges."""
        captures, table = self.captures, self._chance.choice(TABLES)
        taker = captures.id_of(self._chance.choice(captures.names))
        moved = self.move("move", tables=[table], capture=taker)
        time.sleep(SETTLE_S)
        return moved + self.move("rebalance", dry_run=False)

    def move(self, how: str, **body: Any) -> list[float]:
        """The longest pause of the checkpoint while ranges move by a request to the changefeed (`how`: move,
        rebalance). Nothing if all ranges are already where they should be.
        """
        captures, before = self.captures, self.captures.shares()

        def asked() -> dict[str, Any]:
            try:
                return captures.ask("POST", f"/changefeeds/{FEED}/{how}", **body)
            except httpx.HTTPStatusError:  # a capture has just joined, for example
                return {}

        if not eventually(f"a {how}", asked)["moves"]:
            return []
        return [captures.longest_pause_s(lambda: captures.shares() not in ([], before))]
