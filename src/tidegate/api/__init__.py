"""The HTTP API: the most used parts of TiCDC's API v2, so that TiCDC's own `cdc cli` can control a capture.

Reading order: app (routes, errors), requests, changefeeds, feed_json, captures, status.
"""
