"""Starts Spark: session.py opens the session, daemon.py starts Python workers with modules already loaded."""
