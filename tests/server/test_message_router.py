"""Messages as they are sent to other captures."""

from __future__ import annotations

import os

import orjson

from tidegate.control.messages import FROM_PROCESSOR, DispatchResponse, Header, parse
from tidegate.model.reports import Failed
from tidegate.server.captures.message_router import _encoded


def test_an_error_that_names_a_file_in_another_encoding_is_sent() -> None:
    name = os.fsdecode(b"/data/\xff.bin")
    failed = Failed("a file is damaged", name, "", "", retry=False)
    answer = DispatchResponse(Header(1, "default/one", "i", 4, "c2", 1, 7), 3, 2, (), failed)
    found = parse(orjson.loads(_encoded(answer)), FROM_PROCESSOR)
    assert isinstance(found, DispatchResponse)
    assert found.error is not None
    assert (found.error.what, found.error.where) == ("a file is damaged", "/data/?.bin")
