"""Whether an update would send the password that is stored to somebody it was not given for. Pure.

Who may update a changefeed need not know its password, and is not told it: with another host, or without
TLS's checks, it must be given again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tidegate.config.settings import ReplicaConfig
from tidegate.config.sink_uri import SinkUri
from tidegate.config.values import REDACTED

TLS: Final = ("enable_tls", "ca", "cert", "key", "insecure_skip_verify")
"""Settings of Kafka that decide who reads what is sent."""

Side = tuple[SinkUri, ReplicaConfig]


def elsewhere(old: Side, new: Side, given: Mapping[str, Any]) -> list[str]:
    """What would change of where the stored password goes; nothing when it is given again, or there is none.

    given: the configuration as the request has it.
    """
    before, after = old[1].sink.kafka_config, new[1].sink.kafka_config
    sent = (given.get("sink") or {}).get("kafka_config") or {}
    said = new[0].option("sasl-password") or sent.get("sasl_password", REDACTED)
    if not before.sasl_password or after.sasl_password != before.sasl_password or said != REDACTED:
        return []
    changed = [name for name in TLS if getattr(before, name) != getattr(after, name)]
    return changed + ["the hosts of the sink URI"] * (old[0].hosts != new[0].hosts)
