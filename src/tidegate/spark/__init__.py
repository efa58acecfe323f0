"""Spark itself, for the two folders that use it: session.py starts it, daemon.py starts its workers warm."""
