"""The compiled twins of TiDB's formats: rows to cells, cells to texts, Arrow columns and checksums.

Reading order: `text` (values as canonical text, called by other kernels), `float`, `zone`, `json` (the same
for those types), `value` (one stored value into a cell), `datum` (values of old rows and handles),
`record_key`, `row_context`, `row_v2` and `row` (whole rows; the twin of `tidb.row`), `crc` and `checksum`
(the twin of `tidb.checksum`), `column` (one column of many cells), `arrow_lines` and `arrow` (whole record
batches).
"""
