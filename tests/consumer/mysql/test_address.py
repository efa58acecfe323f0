"""Addresses of databases: what is refused, with its fix, and what a connection checks of the server."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pymysql
import pytest
import trustme

from tidegate.consumer.mysql import session
from tidegate.consumer.mysql.session import OPTIONS, MySqlServer
from tidegate.consumer.mysql.ticdc_options import REPLACED
from tidegate.errors import InvalidInput, Retryable
from tidegate.tls import Tls

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


# --- what a connection checks of the server's certificate


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The connections, which go no further than what they would check."""
    made: list[Any] = []

    def stop(self: Any, sock: Any = None) -> None:
        made.append(self)
        raise pymysql.err.OperationalError(2003, "nothing is here")

    monkeypatch.setattr(pymysql.connections.Connection, "connect", stop)
    monkeypatch.setattr(session._Session, "_unchecked", None)
    return made


def context_of(opened: list[Any], tls: Tls | None) -> ssl.SSLContext:
    with pytest.raises(Retryable, match="does not answer"):
        MySqlServer("host", 3306, "root", "", tls).connect()
    return opened[-1].ctx


def test_certificates_that_nobody_checks_are_loaded_once(
    opened: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To load them takes 20 ms of CPU."""
    loaded, usual = [], ssl.create_default_context
    monkeypatch.setattr(ssl, "create_default_context", lambda **how: loaded.append(1) or usual(**how))
    found = {id(context_of(opened, None)) for _ in range(3)}
    assert len(loaded) == len(found) == 1
    assert context_of(opened, None).verify_mode is ssl.CERT_NONE
    assert not opened[-1]._ssl_required


def test_a_ca_that_is_given_is_what_the_server_must_have(opened: list[Any], tmp_path: Path) -> None:
    trustme.CA().cert_pem.write_to_path(tmp_path / "ca.pem")
    context_of(opened, None)
    checked = context_of(opened, Tls(tmp_path / "ca.pem"))
    assert checked.verify_mode is ssl.CERT_REQUIRED
    assert checked.check_hostname
    assert opened[-1]._ssl_required
    assert len(checked.get_ca_certs()) == 1
