"""One column type per file, each with decode and encode.

Three forms of a value: *bytes* as in a row of format v2; *stored* (the plain Python object for these bytes:
packed time, nanoseconds, decimal bytes, see `tidegate.tidb.row`); *text*, TiDB's canonical text.
"""
