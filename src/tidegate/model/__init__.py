"""The nouns that all other folders share; they only check their own invariants.

Reading order: timestamp, span, block, schema, row, ddl, message, changefeed.
"""
