"""Tests of the compiled twins."""
