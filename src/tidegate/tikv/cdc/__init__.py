"""Change data capture of the embedded upstream, named after TiKV's components/cdc.

The path of a change: `observer` (sees the applied command) -> `endpoint` (one thread, first in first out) ->
`delegate` (one per region: makes rows for its downstreams) -> `channel` (one per connection) -> the stream.
`registrations` has the streams and downstreams. `scans` runs one `initializer` per new downstream.
`resolver` tracks the open locks and computes the resolved ts; `ticker` has it sent. `old_value` finds the
value before a change; `service` is the state of a connection.
"""
