"""What a changefeed lets pass: tables, schema changes, transactions, rows and columns; pure.

Reading order: feed (all verdicts of one changefeed), event_filter, rules, rows, expression; events names the
kinds of change, tables says why a table cannot be replicated.
"""
