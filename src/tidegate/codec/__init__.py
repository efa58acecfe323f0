"""Encodes row changes, DDL and resolved marks as messages, and decodes them again.

Reading order: base, entry, registry; a folder of `protocols`, and `formats`, which several of them share.
Then plan and blocks, the compiled encoder of every protocol of rows, and decode, the compiled decoder; both
call `kernels`, and decoders share the parts in `decoding`. keys encodes feeds without tables; large and
fitting deal with messages that are too large; readback compares what was encoded with its rows.
"""
