"""Finds out if an update would send the stored password to a place for which it was not given. Pure.

A user may update a changefeed without knowing its password, and answers hide it. So with another host, or
without TLS checks, the password must be given again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tidegate.config.settings import ReplicaConfig
from tidegate.config.sink_uri import SinkUri
from tidegate.config.values import REDACTED

TLS: Final = ("enable_tls", "ca", "cert", "key", "insecure_skip_verify")
"""Settings of Kafka that decide who can read the connection."""

Side = tuple[SinkUri, ReplicaConfig]


def elsewhere(old: Side, new: Side, given: Mapping[str, Any]) -> list[str]:
    """The changed settings that decide where the stored password goes; none if it is given again or not set.

    given: the configuration in the request.
    """
    before, after = old[1].sink.kafka_config, new[1].sink.kafka_config
    sent = (given.get("sink") or {}).get("kafka_config") or {}
    password = new[0].option("sasl-password") or sent.get("sasl_password", REDACTED)
    if not before.sasl_password or after.sasl_password != before.sasl_password or password != REDACTED:
        return []
    changed = [name for name in TLS if getattr(before, name) != getattr(after, name)]
    return changed + ["the hosts of the sink URI"] * (old[0].hosts != new[0].hosts)
