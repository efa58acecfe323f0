from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TsoMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SYSTEM: _ClassVar[TsoMode]
    MANUAL: _ClassVar[TsoMode]
SYSTEM: TsoMode
MANUAL: TsoMode

class SplitRequest(_message.Message):
    __slots__ = ("region_id", "keys")
    REGION_ID_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    region_id: int
    keys: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, region_id: _Optional[int] = ..., keys: _Optional[_Iterable[bytes]] = ...) -> None: ...

class MergeRequest(_message.Message):
    __slots__ = ("source_id", "target_id")
    SOURCE_ID_FIELD_NUMBER: _ClassVar[int]
    TARGET_ID_FIELD_NUMBER: _ClassVar[int]
    source_id: int
    target_id: int
    def __init__(self, source_id: _Optional[int] = ..., target_id: _Optional[int] = ...) -> None: ...

class TransferRequest(_message.Message):
    __slots__ = ("region_id", "store_id")
    REGION_ID_FIELD_NUMBER: _ClassVar[int]
    STORE_ID_FIELD_NUMBER: _ClassVar[int]
    region_id: int
    store_id: int
    def __init__(self, region_id: _Optional[int] = ..., store_id: _Optional[int] = ...) -> None: ...

class MoveRequest(_message.Message):
    __slots__ = ("region_id", "from_store", "to_store")
    REGION_ID_FIELD_NUMBER: _ClassVar[int]
    FROM_STORE_FIELD_NUMBER: _ClassVar[int]
    TO_STORE_FIELD_NUMBER: _ClassVar[int]
    region_id: int
    from_store: int
    to_store: int
    def __init__(self, region_id: _Optional[int] = ..., from_store: _Optional[int] = ..., to_store: _Optional[int] = ...) -> None: ...

class ChangePeersRequest(_message.Message):
    __slots__ = ("region_id", "changes", "stay")
    class Wish(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        VOTER: _ClassVar[ChangePeersRequest.Wish]
        LEARNER: _ClassVar[ChangePeersRequest.Wish]
        REMOVE: _ClassVar[ChangePeersRequest.Wish]
    VOTER: ChangePeersRequest.Wish
    LEARNER: ChangePeersRequest.Wish
    REMOVE: ChangePeersRequest.Wish
    class Change(_message.Message):
        __slots__ = ("wish", "store_id")
        WISH_FIELD_NUMBER: _ClassVar[int]
        STORE_ID_FIELD_NUMBER: _ClassVar[int]
        wish: ChangePeersRequest.Wish
        store_id: int
        def __init__(self, wish: _Optional[_Union[ChangePeersRequest.Wish, str]] = ..., store_id: _Optional[int] = ...) -> None: ...
    REGION_ID_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    STAY_FIELD_NUMBER: _ClassVar[int]
    region_id: int
    changes: _containers.RepeatedCompositeFieldContainer[ChangePeersRequest.Change]
    stay: bool
    def __init__(self, region_id: _Optional[int] = ..., changes: _Optional[_Iterable[_Union[ChangePeersRequest.Change, _Mapping]]] = ..., stay: _Optional[bool] = ...) -> None: ...

class PeerStatus(_message.Message):
    __slots__ = ("id", "store_id", "role")
    ID_FIELD_NUMBER: _ClassVar[int]
    STORE_ID_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    id: int
    store_id: int
    role: str
    def __init__(self, id: _Optional[int] = ..., store_id: _Optional[int] = ..., role: _Optional[str] = ...) -> None: ...

class RegionStatus(_message.Message):
    __slots__ = ("id", "start_key", "end_key", "version", "conf_ver", "leader_store", "term", "stores", "peers")
    ID_FIELD_NUMBER: _ClassVar[int]
    START_KEY_FIELD_NUMBER: _ClassVar[int]
    END_KEY_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CONF_VER_FIELD_NUMBER: _ClassVar[int]
    LEADER_STORE_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    STORES_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    id: int
    start_key: bytes
    end_key: bytes
    version: int
    conf_ver: int
    leader_store: int
    term: int
    stores: _containers.RepeatedScalarFieldContainer[int]
    peers: _containers.RepeatedCompositeFieldContainer[PeerStatus]
    def __init__(self, id: _Optional[int] = ..., start_key: _Optional[bytes] = ..., end_key: _Optional[bytes] = ..., version: _Optional[int] = ..., conf_ver: _Optional[int] = ..., leader_store: _Optional[int] = ..., term: _Optional[int] = ..., stores: _Optional[_Iterable[int]] = ..., peers: _Optional[_Iterable[_Union[PeerStatus, _Mapping]]] = ...) -> None: ...

class RegionsResponse(_message.Message):
    __slots__ = ("regions",)
    REGIONS_FIELD_NUMBER: _ClassVar[int]
    regions: _containers.RepeatedCompositeFieldContainer[RegionStatus]
    def __init__(self, regions: _Optional[_Iterable[_Union[RegionStatus, _Mapping]]] = ...) -> None: ...

class FaultRequest(_message.Message):
    __slots__ = ("clear", "apply_delay_ms", "scan_delay_ms", "tso_frozen", "resolved_frozen", "pd_stale", "stop_store", "start_store", "cut_streams", "kv_error", "capture_error", "congest", "quota_bytes", "snapshot_delay_ms", "duplicate_share")
    CLEAR_FIELD_NUMBER: _ClassVar[int]
    APPLY_DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    SCAN_DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    TSO_FROZEN_FIELD_NUMBER: _ClassVar[int]
    RESOLVED_FROZEN_FIELD_NUMBER: _ClassVar[int]
    PD_STALE_FIELD_NUMBER: _ClassVar[int]
    STOP_STORE_FIELD_NUMBER: _ClassVar[int]
    START_STORE_FIELD_NUMBER: _ClassVar[int]
    CUT_STREAMS_FIELD_NUMBER: _ClassVar[int]
    KV_ERROR_FIELD_NUMBER: _ClassVar[int]
    CAPTURE_ERROR_FIELD_NUMBER: _ClassVar[int]
    CONGEST_FIELD_NUMBER: _ClassVar[int]
    QUOTA_BYTES_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_SHARE_FIELD_NUMBER: _ClassVar[int]
    clear: bool
    apply_delay_ms: float
    scan_delay_ms: float
    tso_frozen: bool
    resolved_frozen: bool
    pd_stale: bool
    stop_store: int
    start_store: int
    cut_streams: int
    kv_error: InjectedError
    capture_error: InjectedError
    congest: int
    quota_bytes: int
    snapshot_delay_ms: float
    duplicate_share: float
    def __init__(self, clear: _Optional[bool] = ..., apply_delay_ms: _Optional[float] = ..., scan_delay_ms: _Optional[float] = ..., tso_frozen: _Optional[bool] = ..., resolved_frozen: _Optional[bool] = ..., pd_stale: _Optional[bool] = ..., stop_store: _Optional[int] = ..., start_store: _Optional[int] = ..., cut_streams: _Optional[int] = ..., kv_error: _Optional[_Union[InjectedError, _Mapping]] = ..., capture_error: _Optional[_Union[InjectedError, _Mapping]] = ..., congest: _Optional[int] = ..., quota_bytes: _Optional[int] = ..., snapshot_delay_ms: _Optional[float] = ..., duplicate_share: _Optional[float] = ...) -> None: ...

class InjectedError(_message.Message):
    __slots__ = ("name", "share")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    name: str
    share: float
    def __init__(self, name: _Optional[str] = ..., share: _Optional[float] = ...) -> None: ...

class Fault(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: str
    def __init__(self, name: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class FaultResponse(_message.Message):
    __slots__ = ("faults",)
    FAULTS_FIELD_NUMBER: _ClassVar[int]
    faults: _containers.RepeatedCompositeFieldContainer[Fault]
    def __init__(self, faults: _Optional[_Iterable[_Union[Fault, _Mapping]]] = ...) -> None: ...

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
