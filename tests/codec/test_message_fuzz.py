"""The quick form of the messages' fuzz; `make fuzz` has the long one."""

from __future__ import annotations

import pytest

from tests.codec.message_fuzz import run
from tidegate.codec.registry import read_protocols


@pytest.mark.parametrize("protocol", read_protocols())
def test_damaged_messages_are_bad_or_what_the_plain_decoder_says(protocol: str) -> None:
    found = run(protocol, 1, 2_000)
    assert found.wrong == []
    assert found.inputs >= 2_000
    assert found.bad
    assert found.kinds["insert"]
