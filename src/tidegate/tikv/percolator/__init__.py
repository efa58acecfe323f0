"""Percolator transactions: functions from a request and a reader to a response and a write batch. Pure.

The caller holds latches on all keys of a writing command from before the read until its batch is applied, so
the records that were read cannot change in between. Each function returns a `CommandOutcome`; an outcome with
errors has no changes. Rules and names are TiKV's (storage/txn/actions, storage/txn/commands).
"""
