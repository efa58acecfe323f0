"""Decides what a changefeed replicates: tables, schema changes, transactions, rows and columns. Pure.

Reading order: feed (all verdicts of one changefeed), event_filter, rules, rows, expression. events has the
names of kinds of change; tables explains why a table cannot be replicated.
"""
