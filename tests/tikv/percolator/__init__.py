"""Tests of the embedded upstream's `percolator/`."""
