"""Every message has a form for each of its members. The forms are found by the text of an annotation."""

from dataclasses import fields, is_dataclass
from types import ModuleType
from typing import Any, get_args

import pytest

from tidegate.control import messages
from tidegate.model import reports
from tidegate.pipeline.exchange import questions, work


def kinds(module: ModuleType) -> set[type]:
    """The messages in the module's tuples and unions of messages (`TO_WORKER`, `Answer` and others)."""
    groups = [one if type(one) is tuple else get_args(one) for one in vars(module).values()]
    return {kind for group in groups for kind in group if isinstance(kind, type) and is_dataclass(kind)}


@pytest.mark.parametrize("module", [messages, reports, work, questions], ids=lambda one: str(one.__name__))
def test_each_member_of_each_message_has_a_form(module: Any) -> None:
    found = kinds(module)
    assert found
    for kind in found:
        layout = module._WIRE._layout(kind)
        assert [name for _, name, _ in layout.dumps] == [each.name for each in fields(kind)]
        assert [word for word, _ in layout.loads] == [word for word, _, _ in layout.dumps]
