"""Rewrites TiDB's data definition statements in the form in which TiDB's own parser restores them.

TiCDC parses the text of every DDL and sends the text that its parser restores: names in backquotes, words in
upper case, strings in single quotes with their character set, syntax that only TiDB knows in special
comments, without placement and with TTL switched off. `restore` does the same in one pass over the tokens,
without a tree.

- `words`, `lexer`: words and tokens. `cursor`: the position and the smallest parts.
- `literals`, `expressions`, `functions`, `joins`, `hints`, `queries`: the parts of expressions and views.
- `column_type`, `columns`, `options`, `partitions`, `alter_table`, `sequences`, `statements`: the rest.

Source: TiDB `pkg/parser` (`parser.y`, `lexer.go`, `ast`, `format`), as TiCDC 8.5 uses it.
"""
