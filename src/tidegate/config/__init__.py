"""Every setting of a changefeed: frozen dataclasses read once from a sink URI and a TOML file or JSON body.

The names are TiCDC's (docs/reference/settings.md): kebab-case in TOML and URIs, snake_case in JSON. A value
in the URI wins over one in the file. Whatever is wrong is refused here, at the door: an unknown scheme or
option is answered with the nearest valid name (a protocol by `codec.registry.settled`); an option that TiCDC
has and Tidegate does not carry out yet is accepted only at TiCDC's default, so that nothing is silently
ignored. Options that only tune TiCDC's own worker pools are accepted and have no effect.

Used by the API and the CLI (validation), by the pipeline and the owner's sink (a feed's spec holds
`ReplicaConfig.to_json`), and by whoever opens a topic by URI. `reading` is where to begin.
"""

from tidegate.config.checks import check_registry_url, claim_uri
from tidegate.config.reading import (
    config_from_json,
    laid_over,
    load_config,
    merge_config,
    read_toml,
    with_secrets_of,
)
from tidegate.config.settings import (
    ColumnSelector,
    DispatchRule,
    EventFilterRule,
    FilterConfig,
    KafkaConfig,
    LargeMessageConfig,
    ReplicaConfig,
)
from tidegate.config.sink_uri import ROWS, SinkUri, parse_sink_uri, parse_source_uri, reader_uri
from tidegate.config.values import (
    KV_MODES,
    RAW_MODE,
    REDACTED,
    TABLE_MODE,
    TXN_MODE,
    Secret,
    nearest,
    revealed,
)

__all__ = [
    "KV_MODES",
    "RAW_MODE",
    "REDACTED",
    "ROWS",
    "TABLE_MODE",
    "TXN_MODE",
    "ColumnSelector",
    "DispatchRule",
    "EventFilterRule",
    "FilterConfig",
    "KafkaConfig",
    "LargeMessageConfig",
    "ReplicaConfig",
    "Secret",
    "SinkUri",
    "check_registry_url",
    "claim_uri",
    "config_from_json",
    "laid_over",
    "load_config",
    "merge_config",
    "nearest",
    "parse_sink_uri",
    "parse_source_uri",
    "read_toml",
    "reader_uri",
    "revealed",
    "with_secrets_of",
]
