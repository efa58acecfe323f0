from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TsoMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SYSTEM: _ClassVar[TsoMode]
    MANUAL: _ClassVar[TsoMode]
SYSTEM: TsoMode
MANUAL: TsoMode

class AdvanceTsoRequest(_message.Message):
    __slots__ = ("ts",)
    TS_FIELD_NUMBER: _ClassVar[int]
    ts: int
    def __init__(self, ts: _Optional[int] = ...) -> None: ...

class AdvanceTsoResponse(_message.Message):
    __slots__ = ("ts",)
    TS_FIELD_NUMBER: _ClassVar[int]
    ts: int
    def __init__(self, ts: _Optional[int] = ...) -> None: ...

class InfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class InfoResponse(_message.Message):
    __slots__ = ("cluster_id", "tso_mode", "tso", "store_address", "regions", "version", "gc_safe_point")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    TSO_MODE_FIELD_NUMBER: _ClassVar[int]
    TSO_FIELD_NUMBER: _ClassVar[int]
    STORE_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    REGIONS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    GC_SAFE_POINT_FIELD_NUMBER: _ClassVar[int]
    cluster_id: int
    tso_mode: TsoMode
    tso: int
    store_address: str
    regions: int
    version: str
    gc_safe_point: int
    def __init__(self, cluster_id: _Optional[int] = ..., tso_mode: _Optional[_Union[TsoMode, str]] = ..., tso: _Optional[int] = ..., store_address: _Optional[str] = ..., regions: _Optional[int] = ..., version: _Optional[str] = ..., gc_safe_point: _Optional[int] = ...) -> None: ...
