"""Tests of the embedded upstream's `txn/`."""
