"""Addresses of databases that are refused: the error names what is wrong, and what to write instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegate.consumer.mysql.session import OPTIONS, MySqlServer
from tidegate.consumer.mysql.ticdc_options import REPLACED
from tidegate.errors import InvalidInput

PAGE = Path(__file__).parents[3] / "docs" / "databases.md"


@pytest.mark.parametrize("name", sorted(REPLACED))
def test_an_option_of_ticdc_is_named_with_what_takes_its_place(name: str) -> None:
    with pytest.raises(InvalidInput, match="options of TiCDC's sink URI") as refused:
        MySqlServer.from_uri(f"mysql://root:geheim@host:3306/?ssl-ca=x&{name}=1")
    assert name in refused.value.where
    assert REPLACED[name] in refused.value.why
    assert "geheim" not in str(refused.value)


def test_all_options_of_ticdc_are_named_at_once() -> None:
    with pytest.raises(InvalidInput) as refused:
        MySqlServer.from_uri("mysql://host/?worker-count=16&safe-mode=true&time-zone=UTC")
    assert refused.value.where == "--target, worker-count, safe-mode, time-zone"
    assert "--lanes" in refused.value.why
    assert "--time-zone" in refused.value.why


def test_the_page_has_all_of_these_options() -> None:
    page = PAGE.read_text()
    assert [name for name in REPLACED if f"`{name}`" not in page] == []


def test_an_unknown_option_is_not_shown_because_it_may_be_a_password() -> None:
    with pytest.raises(InvalidInput, match="none of") as refused:
        MySqlServer.from_uri("mysql://root:1?geheim@host/")
    assert "geheim" not in str(refused.value)
    assert all(name in refused.value.why for name in OPTIONS)
