"""Forms that several protocols share.

`json_text` (JSON as Go writes it), `avro_binary`, `mysql_type` (types as text), `ddl_words` and
`ddl_header` (DDL), `compression` (of single messages).
"""
