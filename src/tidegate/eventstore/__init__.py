"""Order: hold committed changes until they are resolved, release them by commit ts, keep them for replay.

Reading order: `order` (what sorted means), `segment` (one immutable sorted file), `manifest` (which
segments a span has, and its frontier), `store` (append, seal, drop: the writing edge), `reader` (blocks
between two timestamps). `kernels` is the compiled form of `order`.
"""
