"""Rewrites TiDB's data definition statements in the form in which TiDB's own parser restores them.

TiCDC parses the text of every DDL and sends the text that its parser restores: names in backquotes, words in
upper case, strings in single quotes with their character set, syntax that only TiDB knows in special
comments, without placement and with TTL switched off. `restore` does the same in one pass over the tokens,
without a tree.

The parser is made of small parts that read through one cursor. Each gets the parts that it contains when it
is made (`grammar`); those that contain it, it reaches through `nested`.

- `words`, `lexer`: words and tokens. `cursor`: the position and the smallest parts.
- `literals`, `operands`, `expressions`: what is compared and computed, from the innermost part on.
- `calls`, with `time_calls`, `text_calls`, `aggregates`, `windows`: functions.
- `queries`, with `tables`, `joins`, `hints`: queries.
- `column_type`, `columns`, `constraints`, `options`, `partitions`, `alter_table`, `alter_partitions`: tables.
- `views`, `sequences`, `statements`: the rest.

Source: TiDB `pkg/parser` (`parser.y`, `lexer.go`, `ast`, `format`), as TiCDC 8.5 uses it.
"""
