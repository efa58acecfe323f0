"""Asks the capture that delivers a span which keys of it have changed lately.

    owner --> its own event store, or GET /api/v2/key_loads of another capture --> KeyLoads

This is no message between owner and processor: nothing depends on it except where a hot table is cut, and a
capture of another version may refuse it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from tidegate.access import AccessToken
from tidegate.errors import Retryable
from tidegate.eventstore.key_loads import BUCKETS_MAX, KeyLoads, key_loads
from tidegate.server.captures.message_client import CLUSTER, peer_client, scheme
from tidegate.tls import Tls

PATH: Final = "/api/v2/key_loads"
ANSWER_S: Final = 10.0


class KeyLoadsClient:
    """The questions of one owner. Lives in one asyncio loop."""

    def __init__(
        self,
        me: str,
        cluster: int,
        store: Path,
        address_of: Callable[[str], str],
        token: AccessToken | None,
        tls: Tls | None = None,
    ) -> None:
        """`store`: this capture's event store of tables. The others: as for `MessageClient`."""
        self._me, self._store, self._address_of, self._tls = me, store, address_of, tls
        self._headers = {CLUSTER: str(cluster)} | (token.header if token is not None else {})

    async def ask(self, capture: str, span_id: str) -> KeyLoads:
        """The loads of a span that a capture delivers. Raises TidegateError if it does not say them."""
        import httpx  # here, as in `message_client`

        if capture == self._me:
            return await asyncio.to_thread(key_loads, self._store, span_id)
        address, why = self._address_of(capture), "it is not among the captures"
        if address:
            try:
                async with peer_client(self._tls, ANSWER_S, self._headers) as client:
                    url = f"{scheme(self._tls)}://{address}{PATH}"
                    answer = await client.get(url, params={"span": span_id})
                if answer.is_success:
                    return from_json(answer.json())
                why = f"{address} answers {answer.status_code}"
            except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
                why = f"{type(error).__name__}: {error}"
        raise Retryable("a capture does not say which keys have changed", where=f"capture {capture}", why=why)


def as_json(loads: KeyLoads) -> dict[str, Any]:
    """The answer to GET /key_loads."""
    return {"starts": [key.hex() for key in loads.starts], "weights": loads.weights, "rows": loads.rows}


def from_json(found: Any) -> KeyLoads:
    """The inverse of `as_json`. Raises ValueError."""
    if not isinstance(found, dict) or found.keys() != {"starts", "weights", "rows"}:
        raise ValueError("the answer has other members")
    starts, weights, rows = found["starts"], found["weights"], found["rows"]
    is_list = isinstance(starts, list) and isinstance(weights, list) and set(map(type, starts)) <= {str}
    if not is_list or len(starts) != len(weights) or len(starts) > BUCKETS_MAX:
        raise ValueError("the answer is not so many keys and weights")
    if any(type(one) is not int or one <= 0 for one in (*weights, *(() if rows == 0 else (rows,)))):
        raise ValueError("a weight is no number above 0")
    found_keys = tuple(map(bytes.fromhex, starts))
    if any(one >= other for one, other in pairwise(found_keys)):
        raise ValueError("the keys are not ascending")
    return KeyLoads(found_keys, tuple(weights), rows)
