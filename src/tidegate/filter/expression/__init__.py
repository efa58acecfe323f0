"""Value expressions of event filters: a subset of TiDB's SQL over the columns of one row; pure.

    text -> syntax (the tree) -> bind (columns and types of one table) -> typed
    typed -> plain (row by row, the oracle) | vector (whole blocks)

docs/filters.md describes the subset. An expression outside the subset is refused, with the position in its
text: when a changefeed is created, and when a table changes so that the expression no longer fits it.
"""
