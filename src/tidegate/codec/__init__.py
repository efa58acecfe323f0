"""Encode row changes, DDL and resolved marks as messages, and decode them again: one protocol per file.

Reading order: base, registry, json_text, open_protocol, canal_json, ddl_header; then blocks and kernels,
which are the compiled twins of the plain encoders.
"""
