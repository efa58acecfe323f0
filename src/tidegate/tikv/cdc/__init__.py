"""Change data capture of the embedded upstream, named after TiKV's components/cdc.

The path of a change: `observer` (sees the applied command) -> `endpoint` (one thread, first in first out) ->
`delegate` (one per region: makes rows for its downstreams) -> `channel` (one per connection) -> the stream.
`initializer` scans for a new downstream. `resolver` tracks the open locks and computes the resolved ts;
`old_value` finds the value before a change; `service` is the state of a connection.
"""
