"""Tests of the puller."""
