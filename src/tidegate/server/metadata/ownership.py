"""A capture's reads and writes in the metadata store before it owns the changefeeds.

    check_format    the store is of this version, or empty
    identity_of     the store's random id, which no other store has
    take_ownership  the owner key of a capture that is alone: its revision guards all later writes

All calls block.
"""

from __future__ import annotations

import json
import os
import uuid

from tidegate.control.metadata import (
    FORMAT,
    Compare,
    MetadataStore,
    Put,
    format_key,
    identity_key,
    owner_key,
)
from tidegate.errors import Fatal, InvalidInput


def check_format(metadata: MetadataStore, cluster: int, where: str) -> None:
    """Raises InvalidInput if another version, with other forms of grants, has written to this store."""
    found, owned = metadata.get(format_key(cluster)), metadata.get(owner_key(cluster))
    if (found.value if found is not None else b"") == FORMAT:
        return
    if found is not None or owned is not None:
        raise InvalidInput(
            "the data folder was written by another version of Tidegate",
            where=str(where),
            why=f"its metadata has the form {found.value.decode() if found else '1'}, not {FORMAT.decode()}",
            fix="start with another --data-dir and create the changefeeds again, or use that version",
        )
    # Guarded, because another capture may write it at this moment.
    metadata.transact((Compare(format_key(cluster), mod_revision=0),), (Put(format_key(cluster), FORMAT),))


def identified(metadata: MetadataStore, cluster: int, where: str) -> str:
    """Check the store's format, and return its id. Raises InvalidInput."""
    check_format(metadata, cluster, where)
    return identity_of(metadata, cluster)


def take_ownership(metadata: MetadataStore, cluster: int, capture: str) -> int:
    """Become the owner of a cluster's feeds; returns owner_rev. The earlier owner cannot write any more."""
    value = json.dumps({"capture": capture, "pid": os.getpid()}).encode()
    # Unguarded: it must succeed over any earlier owner, whose guards then fail.
    outcome = metadata.transact((), (Put(owner_key(cluster), value),))
    if not outcome.succeeded:
        raise Fatal(
            "the metadata store refused an unguarded write",
            where=owner_key(cluster),
            fix="check the metadata store, and start the capture again",
        )
    return outcome.revision


def identity_of(metadata: MetadataStore, cluster: int) -> str:
    """The metadata store's id, a random word that the first call makes."""
    key = identity_key(cluster)
    metadata.transact((Compare(key, mod_revision=0),), (Put(key, uuid.uuid4().hex[:12].encode()),))
    found = metadata.get(key)
    assert found is not None
    return found.value.decode()
