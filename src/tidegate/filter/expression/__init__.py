"""Value expressions of event filters: a subset of TiDB's SQL over the columns of one row; pure.

    text -> syntax (what is written) -> bind (columns and types of one table) -> typed
    typed -> plain (row by row, the oracle) | vector (whole blocks)

docs/filters.md states the subset. What lies beyond it is refused with its position in the text, when a
changefeed is created and when a table changes so that the expression no longer fits it.
"""
