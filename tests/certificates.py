"""Certificates of a CA made for a test, in PEM files as users have them."""

from __future__ import annotations

from pathlib import Path

import trustme

from tidegate.tls import Tls


class Authority:
    """A CA, and the files of those it has signed."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._ca, self._folder = trustme.CA(), folder
        self._file = folder / f"{name}.pem"
        self._ca.cert_pem.write_to_path(str(self._file))

    def signed(self, name: str) -> Tls:
        """For a server or client at 127.0.0.1; `name` is its common name."""
        leaf = self._ca.issue_cert("127.0.0.1", common_name=name)
        found = Tls(self._file, self._folder / f"{name}-cert.pem", self._folder / f"{name}-key.pem")
        leaf.cert_chain_pems[0].write_to_path(str(found.cert))
        leaf.private_key_pem.write_to_path(str(found.key))
        return found
