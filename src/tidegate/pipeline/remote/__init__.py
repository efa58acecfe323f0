"""Workers on other machines: `cluster` (their Spark jobs), `elsewhere` (the worker), `service` (what it
reaches of the capture).
"""
