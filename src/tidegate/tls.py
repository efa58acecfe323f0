"""TLS to PD, TiKV and captures with certificates on both sides: the three PEM files of every TiDB tool.

`tidegate --ca CA --cert CERT --key KEY ...` puts their paths into the environment, where the processes that a
command starts (the puller, Spark's Python workers) find them too. On a Spark cluster the executors need the
files at the same paths, and the variables from `spark.executorEnv`. The files are read again for each
channel, so that the next connection uses a renewed certificate.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tidegate.errors import InvalidInput

CA: Final = "TIDEGATE_CA"
CERT: Final = "TIDEGATE_CERT"
KEY: Final = "TIDEGATE_KEY"


@dataclass(frozen=True, slots=True)
class Tls:
    """The paths of the certificates. `cert` and `key` may be missing if the other side requires none.

    Raises InvalidInput if only one of both is given.
    """

    ca: Path
    cert: Path | None = None
    key: Path | None = None

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            given, missing = ("--cert", "--key") if self.key is None else ("--key", "--cert")
            raise InvalidInput(f"{given} is given without {missing}", fix=f"give {missing}, too")

    @classmethod
    def from_environment(cls) -> Tls | None:
        """The paths in the environment's variables; None without TIDEGATE_CA. Raises InvalidInput."""
        ca, cert, key = (os.environ.get(name) for name in (CA, CERT, KEY))
        if not ca:
            if cert or key:
                raise InvalidInput("a certificate is given without the CA's", fix="give --ca, too")
            return None
        return cls(Path(ca), Path(cert) if cert else None, Path(key) if key else None)

    def into(self, environment: MutableMapping[str, str]) -> None:
        """Set the variables."""
        for name, path in ((CA, self.ca), (CERT, self.cert), (KEY, self.key)):
            if path is not None:
                environment[name] = str(path.absolute())

    def http(self) -> ssl.SSLContext:
        """The context of an HTTP server. The next connection uses a certificate renewed meanwhile."""
        if self.cert is None or self.key is None:
            raise InvalidInput("a server needs a certificate of its own", fix="give --cert and --key")
        cert, key = self.cert, self.key
        context = self._context(ssl.Purpose.CLIENT_AUTH)
        context.verify_mode = ssl.CERT_REQUIRED
        read = _stamps(cert, key)

        def renew(connection: Any, name: str | None, begun: ssl.SSLContext) -> None:
            nonlocal read
            found = _stamps(cert, key)
            if found == read:
                return
            try:
                # A connection keeps the certificates its context had when it began, so give it a new context.
                renewed = self._context(ssl.Purpose.CLIENT_AUTH)
                renewed.verify_mode = ssl.CERT_REQUIRED
                begun.load_cert_chain(cert, key)
            except (InvalidInput, OSError, ssl.SSLError):
                return  # the pair may be only half written; the next connection tries again
            read = found
            connection.context = renewed

        context.sni_callback = renew
        return context

    def http_client(self) -> ssl.SSLContext:
        """The context of an HTTP client: it trusts only this CA, and shows its certificate if it has one.

        Raises InvalidInput if a file cannot be read.
        """
        return self._context(ssl.Purpose.SERVER_AUTH)

    def streams(self) -> ssl.SSLContext:
        """The context of an HTTP/2 client for streams to TiKV. Raises InvalidInput if a file cannot be read.

        It accepts the certificates that gRPC accepts in the other calls to the same stores; Python's strict
        X.509 checks would refuse some of them.
        """
        context = self._context(ssl.Purpose.SERVER_AUTH)
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # an intermediate alone may be trusted
        context.set_alpn_protocols(["h2"])
        return context

    def _context(self, purpose: ssl.Purpose) -> ssl.SSLContext:
        for path in filter(None, (self.ca, self.cert, self.key)):
            _read(path)
        try:
            context = ssl.create_default_context(purpose, cafile=str(self.ca))
            if self.cert is not None and self.key is not None:
                context.load_cert_chain(self.cert, self.key)
        except (OSError, ssl.SSLError) as error:
            raise InvalidInput(
                "the certificates cannot be used",
                where=", ".join(str(path) for path in (self.ca, self.cert, self.key) if path is not None),
                why=str(error),
                fix="check --ca, --cert and --key: does the key belong to the certificate?",
            ) from error
        return context

    def pair(self) -> tuple[bytes | None, bytes | None]:
        """The bytes of certificate and key, if there are any. Raises InvalidInput as `authority`."""
        if self.cert is None or self.key is None:
            return None, None
        return _read(self.cert), _read(self.key)

    def authority(self) -> bytes:
        """The bytes of the CA's certificate. Raises InvalidInput if the file cannot be read."""
        return _read(self.ca)


def common_names(certificate: Mapping[str, Any] | None) -> frozenset[str]:
    """The common names of a peer's certificate, as `ssl.SSLSocket.getpeercert` returns it."""
    parts = (certificate or {}).get("subject", ())
    return frozenset(value for part in parts for name, value in part if name == "commonName")


def _stamps(*paths: Path) -> tuple[int, ...]:
    """Values that change when a file changes; 0: the file does not exist."""
    return tuple(path.stat().st_mtime_ns if path.exists() else 0 for path in paths)


def _read(path: Path) -> bytes:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InvalidInput(
            "a certificate or key cannot be read",
            where=str(path),
            why=error.strerror or str(error),
            fix="check --ca, --cert and --key",
        ) from error
    if b"-----BEGIN" not in data:
        raise InvalidInput("this is not a PEM file", where=str(path), fix="check --ca, --cert and --key")
    return data
