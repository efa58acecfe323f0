"""Encodes row changes, DDL and resolved marks as messages, and decodes them again.

Reading order: base, entry, registry; json_text and one folder in `protocols`; ddl_header. Then the compiled
encoder of all protocols of rows (plan, blocks, kernels), the compiled decoder (template, compiled,
match_kernels, decode_kernels, decode), and keys, the encoder of feeds without tables.
"""
