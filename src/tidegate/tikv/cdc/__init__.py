"""Change data capture of the embedded upstream, named after TiKV's components/cdc.

A change goes: `observer` (sees it applied) -> `endpoint` (one thread, first in first out) -> `delegate` (one
per region: rows for its downstreams) -> `channel` (one per connection) -> the stream. A new downstream is
brought up to date by `initializer`. `resolver` knows the open locks and hence the resolved ts; `old_value`
what a key held before; `service` is a connection as the client sees it.
"""
