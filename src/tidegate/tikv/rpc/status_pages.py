"""The HTTP pages of PD and the stores: PD's read-only API, and a store's `/status`, `/metrics`, `/region/ID`.

They serve tools that do not use gRPC (pd-ctl, TiUP, Prometheus, TiCDC's version check). PD serves the pages
on its gRPC port (`front`); the status port serves the same pages and is every store's status address.
(PD: server/api/router.go; TiKV: server/status_server.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final
from urllib.parse import unquote

from tidegate.tikv.pd.placement_driver import PlacementDriver
from tidegate.tikv.pd.stores import VERSION, StoreInfo
from tidegate.tikv.raft.region import Peer, Region, Role

LISTED_MAX: Final = 10_000
"""The most regions in one answer."""
_PD: Final = "/pd/api/v1/"


class StatusPages:
    """The pages by path. Thread-safe; it has no state."""

    def __init__(self, pd: PlacementDriver) -> None:
        self._pd = pd

    def get(self, path: str) -> Any:
        """The content of a page: str for text, otherwise encoded as JSON; None if there is no such page."""
        path = unquote(path.partition("?")[0])
        plain: dict[str, Callable[[], Any]] = {
            "/status": lambda: {"version": VERSION, "git_hash": ""},
            "/metrics": self._metrics,
            _PD + "version": lambda: {"version": f"v{VERSION}"},
            _PD + "health": self._health,
            _PD + "members": self._members,
            _PD + "cluster": lambda: {"id": self._pd.cluster_id},
            _PD + "stores": self._stores,
            _PD + "regions": lambda: self._regions(self._pd.regions.view.regions),
        }
        if path in plain:
            return plain[path]()
        folder, _, last = path.rpartition("/")
        if folder in ("/region", _PD + "region/id") and last.isdecimal():
            region = self._pd.regions.view.by_id.get(int(last))
            return None if region is None else _region(region)
        if folder == _PD + "store" and last.isdecimal():
            store = self._pd.stores.get(int(last))
            return None if store is None else self._store(store)
        return None

    def _member(self) -> dict[str, Any]:
        me = self._pd.members().leader
        urls = list(me.client_urls)
        return {"name": me.name, "member_id": me.member_id, "client_urls": urls, "peer_urls": urls}

    def _health(self) -> list[dict[str, Any]]:
        return [self._member() | {"health": True}]

    def _members(self) -> dict[str, Any]:
        me = self._member()
        header = {"cluster_id": self._pd.cluster_id}
        return {"header": header, "members": [me], "leader": me, "etcd_leader": me}

    def _stores(self) -> dict[str, Any]:
        found = [self._store(store) for store in self._pd.stores.all()]
        return {"count": len(found), "stores": found}

    def _store(self, store: StoreInfo) -> dict[str, Any]:
        regions = self._pd.regions.view.regions
        return {
            "store": {
                "id": store.id,
                "address": store.address,
                "status_address": store.status_address,
                "version": VERSION,
                "start_timestamp": store.started,
                "last_heartbeat": store.last_heartbeat,
                "state_name": "Up" if store.is_up else "Disconnected",
            },
            "status": {
                "leader_count": sum(region.leader == store.id for region in regions),
                "region_count": sum(region.peer_on(store.id) is not None for region in regions),
            },
        }

    def _regions(self, regions: tuple[Region, ...]) -> dict[str, Any]:
        return {"count": len(regions), "regions": [_region(each) for each in regions[:LISTED_MAX]]}

    def _metrics(self) -> str:
        lines = ["# TYPE tidegate_upstream_regions gauge"]
        for store in self._stores()["stores"]:
            number, status = store["store"]["id"], store["status"]
            lines.append(
                f'tidegate_upstream_regions{{store="{number}",type="leader"}} {status["leader_count"]}'
            )
            lines.append(
                f'tidegate_upstream_regions{{store="{number}",type="peer"}} {status["region_count"]}'
            )
        return "\n".join(lines) + "\n"


_ROLES: Final = {
    Role.VOTER: "Voter",
    Role.LEARNER: "Learner",
    Role.INCOMING_VOTER: "IncomingVoter",
    Role.DEMOTING_VOTER: "DemotingVoter",
}
"""PD's names of roles."""


def _region(region: Region) -> dict[str, Any]:
    def peer(of: Peer) -> dict[str, Any]:
        found = {"id": of.id, "store_id": of.store_id, "role": int(of.role), "role_name": _ROLES[of.role]}
        return found | ({"is_learner": True} if of.role is Role.LEARNER else {})

    leader = region.peer_on(region.leader)
    return {
        "id": region.id,
        "start_key": region.start.hex().upper(),
        "end_key": region.end.hex().upper(),
        "epoch": {"conf_ver": region.conf_ver, "version": region.version},
        "peers": [peer(each) for each in region.peers],
        "leader": {} if leader is None else peer(leader),
    }
