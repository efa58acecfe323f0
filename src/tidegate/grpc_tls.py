"""The certificates of `tidegate.tls` in the form that gRPC takes.

It is a module of its own because gRPC takes longer to import than a command that only asks the API takes to
run.
"""

from __future__ import annotations

import grpc

from tidegate.errors import InvalidInput
from tidegate.tls import Tls


def client_credentials(tls: Tls) -> grpc.ChannelCredentials:
    """Credentials for connections to PD, TiKV or a capture. Raises InvalidInput if a file cannot be read."""
    cert, key = tls.pair()
    return grpc.ssl_channel_credentials(tls.authority(), key, cert)


def server_credentials(tls: Tls) -> grpc.ServerCredentials:
    """Credentials for a server, which requires a client certificate of the same CA. Raises InvalidInput."""
    cert, key = tls.pair()
    if cert is None or key is None:
        raise InvalidInput("a server needs a certificate of its own", fix="give --cert and --key")
    return grpc.ssl_server_credentials([(key, cert)], tls.authority(), require_client_auth=True)
