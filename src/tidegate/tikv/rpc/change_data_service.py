"""`cdcpb.ChangeData` over gRPC: the streams of a store's CDC endpoint."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import grpc

from tidegate.errors import InvalidInput
from tidegate.proto import cdcpb_pb2
from tidegate.tikv.cdc.endpoint import Endpoint
from tidegate.tikv.cdc.service import FEATURES_KEY, Connection, parse_features


class ChangeDataService:
    """`cdcpb.ChangeData` over gRPC: one connection per stream."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    def EventFeed(
        self, requests: Iterator[cdcpb_pb2.ChangeDataRequest], context: grpc.ServicerContext
    ) -> Iterator[bytes]:
        return self._serve(requests, context, Connection(False, self._endpoint.new_channel()))

    def EventFeedV2(
        self, requests: Iterator[cdcpb_pb2.ChangeDataRequest], context: grpc.ServicerContext
    ) -> Iterator[bytes]:
        headers = {key: value for key, value in context.invocation_metadata() if isinstance(value, str)}
        try:
            multiplexing = parse_features(headers.get(FEATURES_KEY, ""))
        except InvalidInput as error:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, str(error))
        return self._serve(requests, context, Connection(multiplexing, self._endpoint.new_channel()))

    def _serve(
        self,
        requests: Iterator[cdcpb_pb2.ChangeDataRequest],
        context: grpc.ServicerContext,
        connection: Connection,
    ) -> Iterator[bytes]:
        endpoint = self._endpoint
        # False: the call has already ended, and the callback that closes the connection would never run.
        if not context.add_callback(lambda: endpoint.close(connection)):
            return
        endpoint.open(connection)

        def receive() -> None:
            try:
                for request in requests:
                    endpoint.request(connection, request)
            except grpc.RpcError:
                return  # the client went away
            finally:
                endpoint.close(connection)

        threading.Thread(target=receive, name="event-feed", daemon=True).start()
        while (messages := connection.channel.take()) is not None:
            for message in messages:
                yield message
                connection.channel.sent()
        if connection.channel.failure:
            context.abort(grpc.StatusCode.UNKNOWN, connection.channel.failure)
