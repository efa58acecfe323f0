"""Requests without transactions: `rawkv` (get, put, delete, scan, compare and swap) and their `checksum`."""
