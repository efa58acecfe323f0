"""The checksum is the one that everybody calls CRC-64/XZ."""

from __future__ import annotations

from tidegate.tikv.raw.checksum import crc64


def test_the_sum_of_the_nine_digits_is_the_published_one() -> None:
    assert crc64(b"123456789") == 0x995DC9BBDF1939FA
    assert crc64(b"") == 0
