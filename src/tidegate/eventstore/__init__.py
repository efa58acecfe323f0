"""Event store: hold committed changes until they are resolved, emit them by commit ts, keep them for replay.

Reading order: `order` (what sorted means), `segment` (one immutable sorted file), `directory` (where in it
each table's rows are), `records` (a file that grows by appending), `manifest` (which segments a span has, and
up to which ts it is complete), `floors` (that ts for all spans, on one page), `span_files` (one span's files,
with `merging` and `recovery`), `span_store` (append, seal, drop: one span, with `waiting`), `store` (all
spans: the writing edge), `reader` (blocks between two timestamps), `key_loads` (which keys have
changed lately). `kernels` is the compiled form of `order`.
"""
