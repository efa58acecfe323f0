"""Requests as they arrive: gRPC and HTTP of PD and of the stores.

Reading order: `grpc_server` (bounds), `relay` and `front` (one port for gRPC and HTTP), `members` (PD's, each
behind a port of its own), `http_pages` and `status_pages`, `store` (requests of `tikvpb.Tikv` to handlers),
`services` and `upstream_service` (the gRPC services).
"""
