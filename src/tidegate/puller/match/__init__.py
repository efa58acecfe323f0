"""Matching: the messages of a stream in, committed changes out. Does not know the rest of the puller.

Reading order: `matcher` (pairs each commit with its prewrite; the plain twin), `block_matcher` (the matcher
of one stream, over the kernels), `table_kernels` (the tables that the kernels share), `scan_kernels` (the
wire format), `slot_kernels` (registrations), `bucket_kernels` and `open_kernels` (open prewrites),
`match_kernels` (commits), `gather_kernels` (columns), `spill_kernels` and `spill` (open transactions on
disk), `budget` and `recycler` (the memory that all streams share).
"""
