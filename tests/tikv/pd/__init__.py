"""Tests of the embedded upstream's `pd/`."""
