"""The grants of the simulated owner in etcd: read, made for new shares, stored, settled.

A grant says which ranges a capture may write, and with which token. The product's form:
`server.owner.shares`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tidegate.control.grants import (
    Grant,
    raised,
    settled,
    shared_out,
)
from tidegate.control.metadata import Compare, Put, grant_key
from tidegate.control.share import Shares
from tidegate.errors import Retryable
from tidegate.server.owner.peers import Peers
from tidegate.simulator.virtual_time import Steps
from tidegate.simulator.world import CLUSTER, FEED, INSTANCE

if TYPE_CHECKING:
    from tidegate.simulator.control_process import Control


class OwnerGrants:
    """The changefeed's grants, as its owner reads and writes them."""

    def __init__(self, control: Control, peers: Peers) -> None:
        self._control, self._peers = control, peers
        self._world, self._off = control.world, control.world.off

    def read(self) -> Steps[dict[str, tuple[Grant, Compare]]]:
        """The stored grants by capture, each with the guard that it has not changed since."""
        front = grant_key(CLUSTER, FEED, "")
        found = yield from self._control.client.read(self._world.etcd.under, front)
        return {
            kv.key.removeprefix(front): (
                Grant.from_bytes(kv.value),
                Compare(kv.key, mod_revision=kv.mod_revision),
            )
            for kv in found
        }

    def shared_out(
        self, stored: dict[str, Grant], token: tuple[int, int], shares: Shares
    ) -> dict[str, Grant]:
        """The grants for new shares, and those of earlier writers, which lose their ranges."""
        if "inherit" in self._off:
            stored = {name: replace(one, givers={}) for name, one in stored.items()}
        if len(shares) == 1:
            # A single writer fences its givers itself, so the owner has nothing to settle before it begins.
            (name,) = shares
            return raised(stored, name, INSTANCE, token, shares[name], 1)
        if "all_givers" not in self._off:
            return shared_out(stored, INSTANCE, token, shares, dict.fromkeys(shares, 1))
        changed: dict[str, Grant] = {}
        for name, spans in shares.items():
            changed |= raised(stored | changed, name, INSTANCE, token, spans, 1)
        return changed

    def store(self, grants: dict[str, Grant], guards: tuple[Compare, ...] = ()) -> Steps[None]:
        """Write grants while we are the owner. Raises Retryable if a guard fails."""
        puts = [Put(grant_key(CLUSTER, FEED, name), one.to_bytes()) for name, one in grants.items()]
        rev = self._control.owner_rev

        def stored() -> None:
            self._world.checks.grants(grants.values(), rev)

        done = yield from self._control.write(*puts, guards=guards, stored=stored)
        if not done:
            raise Retryable("the grants of the changefeed have changed meanwhile")

    def settle(self, grants: dict[str, Grant]) -> Steps[None]:
        """Store that all earlier writers of these grants are fenced."""
        after = {name: settled(grant) for name, grant in grants.items()}
        if changed := {name: grant for name, grant in after.items() if grant != grants[name]}:
            yield from self.store(changed)
        for name, grant in after.items():
            if grant.ranges:
                self._peers[name].grant = grant
