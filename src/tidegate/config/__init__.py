"""Every setting of a changefeed: frozen dataclasses read once from a sink URI and a TOML file or JSON body.

The names are TiCDC's (docs/reference/settings.md): kebab-case in TOML and URIs, snake_case in JSON. A value
in the URI wins over one in the file. Whatever is wrong is refused here, at the door: an unknown scheme or
option is answered with the nearest valid name (a protocol by `codec.registry.settled`); an option that TiCDC
has and Tidegate does not carry out yet is accepted only at TiCDC's default, so that nothing is silently
ignored. Options that only tune TiCDC's own worker pools are accepted and have no effect.

Used by the API and the CLI (validation), by the pipeline and the owner's sink (a feed's spec holds
`ReplicaConfig.to_json`), and by whoever opens a topic by URI. `reading` is where to begin.
"""
