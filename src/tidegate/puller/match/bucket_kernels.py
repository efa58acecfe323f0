"""The hash table of open prewrites: buckets of one cache line, seven entries each, found by their tags.

A bucket's first word holds a tag for each of its seven entries (a byte of the hash; 0 if there is no entry)
and, in its highest byte, the number of entries that belong here but had to go to a later bucket. The other
words are the entries: a row's number with IN_MESSAGE, or a record's offset in the arena. All seven tags are
compared at once, and an entry is nearly always in the first bucket or not in the table, so the CPU
mispredicts few branches. After F14 (Facebook, folly), in words instead of vectors.

The place of an entry is the number of its word, counted from the table's address; only `rehash` changes it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tidegate.kernel import address, cttz64, inline, load_u64, store_u64
from tidegate.puller.match.table_kernels import U64, i64, put_word, table_mask

ENTRIES = 7
"""Entries of a bucket."""

BUCKET = 64
_WORD = 8
"""The sizes in bytes of a bucket and of one of its words."""

_WORDS = BUCKET // _WORD
"""Words of a bucket: that of the tags, then the entries, a lane each."""
_PLACE_BUCKET = _WORDS.bit_length() - 1
"""The lowest bit of a place that belongs to the number of its bucket."""
_TAG_AT, _TAG = np.uint64(48), np.uint64(0xFF)
"""The lowest bit of a hash that belongs to its tag, and the bits of a tag."""
_LANE_AT, _LANES = np.uint64(3), np.uint64(0x38)
"""The number of a bit in the word of tags: from `_LANE_AT` on the lane, which are the bits `_LANES`."""
_EACH = np.uint64(0x0101010101010101)
_LOW = np.uint64(0x7F7F7F7F7F7F7F7F)
_TAGS = np.uint64(0x0080808080808080)
_OVER = np.uint64(56)
_FULL = np.uint64(255)


@inline
def tag_of(hashed: Any) -> Any:
    """The tag of a hash; never 0."""
    # The bucket comes from the low bits, so entries of one bucket still differ in their tags.
    tag = (hashed >> _TAG_AT) & _TAG
    return tag + np.uint64(tag == np.uint64(0))


@inline
def tag_matches(tags: Any, tag: Any) -> Any:
    """A word with the highest bit set in the byte of each entry whose tag is `tag`, and no other bit."""
    # A byte of `differ` is 0 if the tags are equal. Adding 0x7F to its low seven bits sets its highest bit
    # unless they are 0, and carries nothing into the next byte; `| differ` adds the byte's own highest bit.
    differ = tags ^ (tag * _EACH)
    return ~(((differ & _LOW) + _LOW) | differ) & _TAGS


@inline
def has_overflow(tags: Any) -> Any:
    """Whether entries that belong to a bucket are in a later one."""
    return (tags >> _OVER) != np.uint64(0)


@inline
def first_lane(matches: Any) -> Any:
    """The lane of the first entry that is marked in a word of `tag_matches`."""
    return i64(cttz64(matches) >> _LANE_AT)


@inline
def place_of(number: int, lane: int) -> int:
    """The place of the entry in a lane of a bucket."""
    return _WORDS * number + 1 + lane


@inline
def has_entry(tags: Any, lane: int) -> Any:
    """Whether a lane of a bucket has an entry."""
    return (tags >> (np.uint64(lane) << _LANE_AT)) & _TAG != np.uint64(0)


@inline
def bucket_of(table: int, hashed: Any) -> Any:
    """The address of the bucket to which a hash belongs."""
    return table + BUCKET * (i64(hashed) & table_mask(table))


@inline
def first_match(table: int, hashed: Any) -> Any:
    """The first entry in the hash's bucket with its tag; 0 if there is none."""
    bucket = bucket_of(table, hashed)
    matches = tag_matches(load_u64(bucket), tag_of(hashed))
    if matches == np.uint64(0):
        return np.uint64(0)
    # A byte's highest bit is at 8 * lane + 7; the mask leaves 8 * lane, the offset of the lane's word.
    return load_u64(bucket + _WORD + i64(cttz64(matches) & _LANES))


@inline
def add_entry(table: int, hashed: Any, entry: Any) -> int:
    """Add an entry to the bucket of its hash or a later one; returns its place. The table must have room."""
    mask = table_mask(table)
    number = i64(hashed) & mask
    # It ends: at most four entries for each bucket of seven are allowed (`table_room`), so some bucket has
    # a free lane.
    while True:
        bucket = table + BUCKET * number
        tags = load_u64(bucket)
        # The classic search for a zero byte. A borrow can mark a byte above a zero byte by mistake, but
        # never the lowest marked byte, and only that one is used. The highest byte, the count, is masked.
        free = (tags - _EACH) & ~tags & _TAGS
        if free != np.uint64(0):
            bit = cttz64(free) & _LANES
            store_u64(bucket, tags | (tag_of(hashed) << bit))
            place: int = place_of(number, i64(bit >> _LANE_AT))
            put_word(table, place, entry)
            return place
        # A count of 255 stays: it no longer says how many there are, so it may never be reduced, and
        # searches continue in the next bucket until the table is rebuilt.
        if (tags >> _OVER) != _FULL:
            store_u64(bucket, tags + (np.uint64(1) << _OVER))
        number = (number + 1) & mask


@inline
def remove_entry(table: int, place: int, hashed: Any) -> None:
    """Remove the entry with this hash from its place."""
    mask = table_mask(table)
    number = place >> _PLACE_BUCKET
    bit = np.uint64((place & (_WORDS - 1)) - 1) << _LANE_AT
    bucket = table + BUCKET * number
    store_u64(bucket, load_u64(bucket) & ~(_TAG << bit))
    passed = i64(hashed) & mask
    # `add_entry` counted the entry in each bucket that it passed. The table has not changed its size since,
    # so this is the same way.
    while passed != number:
        bucket = table + BUCKET * passed
        tags = load_u64(bucket)
        if (tags >> _OVER) != _FULL:
            store_u64(bucket, tags - (np.uint64(1) << _OVER))
        passed = (passed + 1) & mask


def hash_table(entries: int) -> U64:
    """An empty table for `entries` entries (then at most 57 % full). Kernels take `table_address`."""
    buckets = 1 << max(0, (max(entries, 1) - 1) // 4).bit_length()
    # One bucket more for the alignment, and one for the word of the mask.
    table = np.zeros(8 * (buckets + 2), dtype=np.uint64)
    table[(table_address(table) - address(table)) // 8 - 1] = buckets - 1
    return table


def table_room(table: U64) -> int:
    """The number of entries that the table may hold: four for each bucket of seven."""
    return 4 * (len(table) // 8 - 2)


def table_address(table: U64) -> int:
    """The address of the first bucket, which begins a cache line; the word before it holds the mask."""
    return (address(table) + 8 + BUCKET - 1) & -BUCKET
