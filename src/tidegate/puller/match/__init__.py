"""Matching: turns a stream's messages into committed changes. It does not use the rest of the puller.

Reading order:

- `matcher` pairs each commit with its prewrite; it is the plain twin;
- `matched` has the nouns, `block_matcher` the matcher of one stream;
- `pairing` runs the kernels in order, over the tables of `registrations`, `portion` (input), `open_rows` and
  `outcome` (output); `addresses` caches the addresses of these tables;
- the kernels: `table_kernels` (the tables that they share), `scan_kernels` (the wire format),
  `registration_kernels` (registrations), `bucket_kernels` and `open_kernels` (open prewrites),
  `match_kernels` (commits), `gather_kernels` (columns);
- open transactions on disk: `spill` and `spill_kernels` (the logs), `spilling` (chooses what is spilled),
  `playback` (matches the logs);
- `budget` and `recycler` are the memory that all streams share.
"""
