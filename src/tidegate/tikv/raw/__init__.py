"""Requests without transactions: `rawkv` (the requests), `raw_pairs` (what is stored), and `checksum`."""
