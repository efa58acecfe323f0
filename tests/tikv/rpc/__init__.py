"""Tests of the embedded upstream's `rpc/`."""
