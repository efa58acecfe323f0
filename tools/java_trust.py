"""Writes the certificates that Python trusts into a trust store for Java.

The JDK from PyPI has its own certificates and does not know those that a company, or this machine, has added.
Python and pip read them from SSL_CERT_FILE. For Java they are written in the JKS format (Java's own
`sun.security.provider.JavaKeyStore`: big-endian words, then a SHA-1 digest keyed with the password).
"""

from __future__ import annotations

import hashlib
import os
import ssl
import struct
from pathlib import Path

PASSWORD = "changeit"  # no secret: Java only needs a password to check the digest of a trust store
MAGIC, VERSION, TRUSTED = 0xFEEDFEED, 2, 2


def java_options(folder: Path) -> list[str]:
    """Options that make Java trust the certificates in SSL_CERT_FILE. Empty if it is not set or empty."""
    if not os.environ.get("SSL_CERT_FILE"):
        return []
    certificates = ssl.create_default_context().get_ca_certs(binary_form=True)
    if not certificates:
        return []
    file = folder / "trust.jks"
    file.write_bytes(trust_store(certificates))
    where = f"-Djavax.net.ssl.trustStore={file}"
    return [where, "-Djavax.net.ssl.trustStoreType=JKS", f"-Djavax.net.ssl.trustStorePassword={PASSWORD}"]


def trust_store(certificates: list[bytes]) -> bytes:
    """A JKS trust store of DER certificates."""
    entries = b"".join(
        struct.pack(">I", TRUSTED)
        + _text(f"ca-{n}")
        + bytes(8)
        + _text("X.509")
        + struct.pack(">I", len(der))
        + der
        for n, der in enumerate(certificates)
    )
    data = struct.pack(">III", MAGIC, VERSION, len(certificates)) + entries
    keyed = PASSWORD.encode("utf-16-be") + b"Mighty Aphrodite"
    return data + hashlib.sha1(keyed + data, usedforsecurity=False).digest()


def _text(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode("ascii")
