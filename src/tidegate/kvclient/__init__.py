"""A client of TiKV and PD, synchronous except for streams; the only folder that opens connections to them.

Reading order: `channel`, `backoff`, `pd_calls`, `tso_stream`, `pd`, `region_cache`, `region_request` (one
request to one region, and the reaction if the region moved), `lock_resolver`, `snapshot` (reads),
`transaction` (writes); for the puller's streams `hpack`, `grpc_messages`, `http2_output`, `http2` (one call,
pure), `stream_loop` (one thread for all calls). A `backoff.Backoff` bounds every wait; when its budget is
spent the caller gets `errors.Retryable`. Keys are raw everywhere, except for the bounds of PD's regions,
which are memcomparable-encoded.
"""
