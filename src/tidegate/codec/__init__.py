"""Encodes row changes, DDL and resolved marks as messages, and decodes them again.

Reading order: base, entry, registry; json_text and a folder of `protocols`; ddl_header; then plan, blocks,
piece_kernels, job_kernels, row_kernels and kernels, which are the compiled encoder of every protocol of rows;
template, compiled, template_kernels, json_scan_kernels, match_kernels, batch_kernels, decode_kernels and
decode, the compiled decoder; and keys, the encoder of feeds without tables.
"""
