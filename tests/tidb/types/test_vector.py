import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.golden_folder import count, lines
from tidegate.errors import InvalidInput, Undecodable
from tidegate.tidb.types import vector


@pytest.mark.golden
def test_golden_vectors() -> None:
    for case in lines("keys/vectors"):
        data = bytes.fromhex(case["binary"])
        assert vector.decode(data) == case["string"]
        assert vector.encode(case["text"]) == data
        count("keys", "vectors")


@given(st.binary(max_size=40))
def test_any_bytes_are_a_vector_or_undecodable(data: bytes) -> None:
    with contextlib.suppress(Undecodable):
        assert vector.encode(vector.decode(data)) == data


def test_texts_that_are_no_vector_are_refused() -> None:
    for text in ("", "1,2", "[a]", "[1e999999]"):
        with pytest.raises(InvalidInput):
            vector.encode(text)
