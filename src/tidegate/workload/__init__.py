"""Transactions for an upstream: recorded change logs and a bank-like demo workload, written as TiDB would.

`changelog` reads recorded logs and compares tables with their snapshot lines; `load` replays a log through
`kvclient`; `schema`, `ddl` and `definitions` make DDL as TiDB stores it; `bank` is the demo workload.
"""
