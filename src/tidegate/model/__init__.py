"""The nouns every other folder speaks; no behaviour beyond their own invariants.

Reading order: timestamp, span, block, schema, row, ddl, message, changefeed.
"""
