"""The network edge: gRPC and HTTP of PD and of the stores.

Reading order: `grpc_server` (bounds), `relay` and `front` (one port for gRPC and HTTP), `members` (PD's
members, each with its own port), `http_pages` and `status_pages`, `store` (handlers of `tikvpb.Tikv`'s
requests), `handlers` and the gRPC services: `pd_services`, `tikv_service`, `change_data_service`,
`upstream_service`.
"""
