"""TLS on every connection: reading, writing and capturing with certificates, and clear refusals without."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import trustme

from tests.puller.test_puller import World, eventually, fail
from tidegate.errors import InvalidInput, Retryable
from tidegate.eventstore import kernels as store_kernels
from tidegate.eventstore.store import EventStore
from tidegate.grpc_tls import client_credentials
from tidegate.kvclient.pd import PdClient
from tidegate.model.span import Span
from tidegate.puller.match import block_matcher
from tidegate.puller.puller import Puller
from tidegate.tikv.server import EmbeddedUpstream
from tidegate.tls import CA, CERT, KEY, Tls

SPAN = Span(b"t", b"u")


def certified(folder: Path, name: str) -> Tls:
    """A new CA and one certificate of it, for a server and a client at this machine's own address; `name` is
    its common name.
    """
    authority = trustme.CA()
    leaf = authority.issue_cert("127.0.0.1", common_name=name)
    found = Tls(*(folder / f"{name}-{part}.pem" for part in ("ca", "cert", "key")))
    authority.cert_pem.write_to_path(str(found.ca))
    leaf.cert_chain_pems[0].write_to_path(str(found.cert))
    leaf.private_key_pem.write_to_path(str(found.key))
    return found


@pytest.fixture
def tls(tmp_path: Path) -> Tls:
    return certified(tmp_path, "ours")


@pytest.fixture
def secured(tmp_path: Path, tls: Tls) -> Iterator[EmbeddedUpstream]:
    with EmbeddedUpstream(tmp_path / "upstream", regions=3, stores=2, tls=tls) as upstream:
        yield upstream


def test_rows_are_written_read_and_captured_with_certificates(
    secured: EmbeddedUpstream, tls: Tls, tmp_path: Path
) -> None:
    block_matcher.warm()
    store_kernels.warm()
    with PdClient(f"https://{secured.pd_addr}", tls=tls) as pd:
        world = World(secured, pd, tmp_path / "events", random.Random(5), last_ts=pd.tso())
        start = world.last_ts
        store = EventStore(world.folder)
        puller = Puller(pd, store, on_failure=fail)
        puller.watch(SPAN, start)
        eventually(lambda: puller.status()[0].regions == 3, "three regions")
        world.run(10)
        world.check(SPAN, start)
        puller.close()
        store.close()


def test_without_a_certificate_or_with_anothers_no_one_is_served(
    secured: EmbeddedUpstream, tls: Tls, tmp_path: Path
) -> None:
    other = certified(tmp_path, "other")
    for wrong in (None, replace(tls, cert=None, key=None), replace(other, ca=tls.ca), other):
        with (
            PdClient(secured.pd_addr, tls=wrong, retry_s=0.2) as pd,
            pytest.raises(Retryable, match="PD is unreachable"),
        ):
            pd.tso()
    with PdClient(secured.pd_addr, tls=tls) as pd:
        assert pd.tso() > 0


def test_an_https_address_without_a_ca_certificate_names_the_option() -> None:
    with pytest.raises(InvalidInput, match=r"(?s)TLS needs the certificate.*--ca"):
        PdClient("https://127.0.0.1:2379")


def test_files_that_are_missing_or_no_certificates_are_named(tmp_path: Path, tls: Tls) -> None:
    with pytest.raises(InvalidInput, match="--cert is given without --key"):
        replace(tls, key=None)
    with pytest.raises(InvalidInput, match=r"(?s)cannot be read.*nowhere\.pem.*No such file"):
        client_credentials(Tls(tmp_path / "nowhere.pem"))
    (tmp_path / "text").write_text("secret words")
    with pytest.raises(InvalidInput, match="not a PEM file") as refused:
        client_credentials(Tls(tmp_path / "text"))
    assert "secret words" not in refused.value.render()


def test_the_commands_take_them_as_options_or_from_the_environment(
    secured: EmbeddedUpstream, tls: Tls
) -> None:
    options = ["--ca", str(tls.ca), "--cert", str(tls.cert), "--key", str(tls.key)]
    variables = {CA: str(tls.ca), CERT: str(tls.cert), KEY: str(tls.key)}
    command = ["upstream", "region", "list", "--pd", secured.pd_addr, "--json"]
    by_option, by_variable = (
        subprocess.run(
            [sys.executable, "-m", "tidegate", *given, *command],
            env={**os.environ, **more},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for given, more in ((options, {}), ([], variables))
    )
    assert [json.loads(line)["id"] for line in by_option.splitlines()] == [
        region.id for region in secured.regions.all
    ]
    assert len(by_variable.splitlines()) == 3
