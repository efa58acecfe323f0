"""From Kafka topics to staged rows, in Spark tasks or in processes of our own.

`source` (what is read), `offsets` (the driver's questions to the broker), `fetcher` (the interface),
`fetch_spark` and `fetch_workers` (who fetches), `fetch` (one range), `topic_decoder`, `claims` and
`handle_keys` (rows that are elsewhere), `mark_headers`, `staging` (the files of decoded rows), `daemon`
(Spark's workers), `group_offsets` (for lag tools).
"""
