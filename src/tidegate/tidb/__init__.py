"""The formats of TiDB, byte for byte, both directions: keys, rows, column types, table and job JSON.

No I/O, no Spark. Decoders are total: any bytes give a value or `errors.Undecodable`, in memory bounded by
the input. Reading order: memcomparable, keys, datum, types, row, table_info, ddl_job.
The compiled twins are in `kernels/`.
"""
