"""Child processes and background tasks, which a capture runs besides its loop.

`supervisor` (child processes, and the socket to them), `processes` (as Linux shows them),
`compilation` (of the kernels, before a capture begins), `jobs` (background tasks of a changefeed).
"""
