"""Order: hold committed changes until they are resolved, release them by commit ts, keep them for replay.

Reading order: `order` (what sorted means), `segment` (one immutable sorted file), `directory` (which tables'
rows are where in it), `records` (a file that grows by appending), `manifest` (which segments a span has, and
how far it is complete), `floors` (the latter for all spans, on one page), `store` (append, seal, drop: the
writing edge), `reader` (blocks between two timestamps). `kernels` is the compiled form of `order`.
"""
