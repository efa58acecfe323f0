"""The addresses at which the upstream's gRPC servers listen, with TLS or without."""

from __future__ import annotations

import grpc

from tidegate.errors import InvalidInput
from tidegate.grpc_tls import server_credentials
from tidegate.tls import Tls


class Listener:
    """Binds servers to addresses. With `tls` only clients with a certificate of its CA can connect."""

    def __init__(self, tls: Tls | None) -> None:
        self._tls = tls

    def bind(self, server: grpc.Server, address: str, fix: str = "choose a free --pd address") -> str:
        """Bind a server; returns the address with its actual port. Raises InvalidInput if it fails."""
        try:
            if self._tls is None:
                port = server.add_insecure_port(address)
            else:
                port = server.add_secure_port(address, server_credentials(self._tls))
        except RuntimeError as error:
            raise InvalidInput(
                "the upstream cannot listen", where=address, why=str(error), fix=fix
            ) from error
        return f"{address.rpartition(':')[0]}:{port}"
