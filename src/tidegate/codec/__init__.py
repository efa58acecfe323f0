"""Encode row changes, DDL and resolved marks as messages, and decode them again.

Reading order: base, entry, registry; json_text and a folder of `protocols`; ddl_header; then plan, blocks and
kernels, which are the compiled encoder of every protocol of rows, template, compiled,
match_kernels, decode_kernels and decode, the compiled decoder, and keys, the encoder of feeds without tables.
"""
