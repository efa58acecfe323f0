"""Tests of the embedded upstream's `raft/`."""
