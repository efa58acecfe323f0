"""Header blocks: the RFC's own examples, what gRPC sends, and nonsense."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.kvclient import hpack
from tidegate.kvclient.hpack import MalformedError

NAMES = st.text(alphabet="abcdefghijklmnopqrstuvwxyz-", min_size=1)


@given(st.lists(st.tuples(NAMES, st.text(max_size=400))))
def test_what_is_encoded_is_decoded(headers: list[tuple[str, str]]) -> None:
    assert hpack.decode(hpack.encode(headers)) == headers


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("f1e3c2e5f23a6ba0ab90f4ff", "www.example.com"),
        ("a8eb10649cbf", "no-cache"),
        ("25a849e95bb8e8b4bf", "custom-value"),
        ("d07abe941054d444a8200595040b8166e082a62d1bff", "Mon, 21 Oct 2013 20:13:21 GMT"),
        ("94e7821dd7f2e6c7b335dfdfcd5b3960d5af27087f3672c1ab270fb5291f9587316065c003ed4ee5b1063d5007", None),
    ],
)
def test_strings_of_the_rfc_in_huffmans_code_are_read(code: str, text: str | None) -> None:
    """RFC 7541, C.4 and C.6."""
    text = text or "foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1"
    block = bytes([0, 4]) + b"name" + bytes([0x80 | len(code) // 2]) + bytes.fromhex(code)
    assert hpack.decode(block) == [("name", text)]


def test_each_byte_has_a_code_and_no_code_begins_another() -> None:
    codes = {format(code, f"0{bits}b"): symbol for (bits, code), symbol in hpack._SYMBOLS.items()}
    assert sorted(codes.values()) == list(range(257))
    ordered = sorted(codes)
    assert not any(after.startswith(one) for one, after in pairwise(ordered))
    assert sum(2.0 ** -len(code) for code in codes) == 1


def test_the_status_is_read_by_index_and_other_static_names_are_skipped() -> None:
    size_of_the_dynamic_table = "20"
    content_type = "5f" + "10" + b"application/grpc".hex()
    server = "76" + "01" + b"x".hex()
    status = "00" + "0b" + b"grpc-status".hex() + "02" + b"12".hex()
    block = bytes.fromhex(size_of_the_dynamic_table + "88" + server + content_type + status)
    assert hpack.decode(block) == [
        (":status", "200"),
        ("content-type", "application/grpc"),
        ("grpc-status", "12"),
    ]
    assert hpack.decode(bytes.fromhex("8e" + "0803" + b"503".hex())) == [
        (":status", "500"),
        (":status", "503"),
    ]


@pytest.mark.parametrize(
    "block",
    [
        "80",  # index 0
        "be",  # the first entry of the dynamic table, which has none
        "7f00" + "0161",  # as a name
        "00",  # no name
        "000161",  # no value
        "0005" + "61",  # a name that is cut
        "0001617f",  # a length that is cut
        "0001617fffffffffffff7f",  # a length without an end
        "00016181" + "fe",  # cut inside a code
        "00016182" + "ffff",  # more than a byte of padding
        "00016184" + "ffffffff",  # the end's code
    ],
)
def test_what_is_malformed_is_refused(block: str) -> None:
    with pytest.raises(MalformedError):
        hpack.decode(bytes.fromhex(block))


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(block: bytes) -> None:
    try:
        headers = hpack.decode(block)
    except MalformedError:
        return
    assert all(name for name, _ in headers)
