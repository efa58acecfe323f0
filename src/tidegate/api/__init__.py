"""The HTTP API: TiCDC's API v2 in a first form, so that TiCDC's own `cdc cli` can drive a capture.

Reading order: app (routes, errors), changefeeds, captures, status.
"""
