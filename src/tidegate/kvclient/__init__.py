"""A client of TiKV and PD, synchronous but for streams; the only folder that opens connections to them.

Reading order: `channel`, `backoff`, `pd`, `region_cache`, `region_request` (one request to one region, and
what to do when the region moved), `lock_resolver`, `snapshot` (reads), `transaction` (writes); for the
puller's streams `hpack`, `http2` (one call, pure), `stream_loop` (one thread for all calls). Every wait is
bounded by a `backoff.Backoff`; when its budget is spent the caller gets `errors.Retryable`.
Keys are raw everywhere except in what PD says about regions, which is memcomparable-encoded.
"""
