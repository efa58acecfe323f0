"""Every setting of a changefeed: frozen dataclasses read once from a sink URI and a TOML file or JSON body.

The names are TiCDC's (docs/reference/settings.md): kebab-case in TOML and URIs, snake_case in JSON. A value
in the URI wins over one in the file. Everything invalid is refused here, before anything else uses it. An
unknown scheme or option is answered with the nearest name (a protocol by `codec.registry.canonical`). An
option that TiCDC has and Tidegate does not support yet is accepted only with TiCDC's default, so that nothing
is silently ignored. Options that only tune TiCDC's own worker pools are accepted and have no effect.

Used by the API and the CLI (validation), by the pipeline and the owner's sink (a feed's spec has
`ReplicaConfig.to_json`), and by all code that opens a topic by URI. Begin reading with `reading`.
"""
