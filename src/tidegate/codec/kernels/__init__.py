"""The compiled encoders and decoders. They import no other room of `codec`.

Encoding: `job_kernels` and `piece_kernels` (layouts), `text_kernels` and `connect_kernels` (values),
`row_kernels` (a row), `encode_kernels` (JSON), `avro_kernels` with `avro_decimal_kernels`,
`kv_kernels`. Decoding: `template_kernels` (layouts), `json_scan_kernels`, `match_kernels`,
`batch_kernels` and `decode_kernels` (JSON), `avro_read_kernels`, `avro_decode_kernels`,
`simple_decode_kernels` and `avro_column_kernels` (Avro). Both: `layout_kernels`.
"""
