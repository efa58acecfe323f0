"""Shared by all gRPC services of the upstream: their handlers, health, and the status of errors.

The services themselves: `pd_services` for PD, `tikv_service` for a store, `change_data_service` for its CDC
endpoint, and `upstream_service` for what only this upstream offers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NoReturn, Protocol

import grpc
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from tidegate.errors import InvalidInput, Retryable

_SERVING: Final = b"\x08\x01"
"""grpc.health.v1.HealthCheckResponse with status SERVING."""
_SERIALIZED: Final = frozenset({"cdcpb.ChangeData.EventFeed", "cdcpb.ChangeData.EventFeedV2"})
"""Methods that return messages already serialized."""


def _as_it_is(data: bytes) -> bytes:
    return data


class ProtoFile(Protocol):
    """A module that was generated from a .proto file."""

    @property
    def DESCRIPTOR(self) -> FileDescriptor: ...


def service(file: ProtoFile, name: str, implementation: object) -> grpc.GenericRpcHandler:
    """Handlers for the methods of a file's service that `implementation` has; others are UNIMPLEMENTED."""
    descriptor, handlers = file.DESCRIPTOR.services_by_name[name], {}
    for method in descriptor.methods:
        behaviour = getattr(implementation, method.name, None)
        if behaviour is None:
            continue
        decode = GetMessageClass(method.input_type).FromString
        encode = GetMessageClass(method.output_type).SerializeToString
        if method.client_streaming:
            handlers[method.name] = grpc.stream_stream_rpc_method_handler(
                _decoding(behaviour, decode),
                request_deserializer=_as_it_is,
                response_serializer=_as_it_is if method.full_name in _SERIALIZED else encode,
            )
        else:
            handlers[method.name] = grpc.unary_unary_rpc_method_handler(
                behaviour, request_deserializer=decode, response_serializer=encode
            )
    return grpc.method_handlers_generic_handler(descriptor.full_name, handlers)


def _decoding(behaviour: Callable[..., Any], decode: Callable[[bytes], Any]) -> Callable[..., Any]:
    """A stream's behaviour, given messages that are decoded here and not by gRPC.

    gRPC ends a call by itself if its own decoder fails, but never frees the state of that call; a server
    with such a call never stops.
    """

    def messages(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[Any]:
        for data in requests:
            try:
                message = decode(data)
            except DecodeError:
                context.set_code(grpc.StatusCode.INTERNAL)
                context.set_details("Exception deserializing request!")
                return
            yield message

    return lambda requests, context: behaviour(messages(requests, context), context)


def health() -> grpc.GenericRpcHandler:
    """`grpc.health.v1.Health`: always serving."""
    check = grpc.unary_unary_rpc_method_handler(lambda request, context: _SERVING)
    return grpc.method_handlers_generic_handler("grpc.health.v1.Health", {"Check": check})


def abort(context: grpc.ServicerContext, error: Exception) -> NoReturn:
    """End a call with the status that says what the caller should do: raises."""
    code = grpc.StatusCode.INTERNAL
    if isinstance(error, InvalidInput):
        code = grpc.StatusCode.INVALID_ARGUMENT
    elif isinstance(error, Retryable):
        code = grpc.StatusCode.UNAVAILABLE
    context.abort(code, str(error) or type(error).__name__)
    raise AssertionError("gRPC's abort raises")
