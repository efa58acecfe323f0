"""Tests of the embedded upstream's `raw/`."""
