from tidegate.proto import metapb_pb2 as _metapb_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ErrorType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OK: _ClassVar[ErrorType]
    UNKNOWN: _ClassVar[ErrorType]
    NOT_BOOTSTRAPPED: _ClassVar[ErrorType]
    STORE_TOMBSTONE: _ClassVar[ErrorType]
    ALREADY_BOOTSTRAPPED: _ClassVar[ErrorType]
    INCOMPATIBLE_VERSION: _ClassVar[ErrorType]
    REGION_NOT_FOUND: _ClassVar[ErrorType]
    GLOBAL_CONFIG_NOT_FOUND: _ClassVar[ErrorType]
    DUPLICATED_ENTRY: _ClassVar[ErrorType]
    ENTRY_NOT_FOUND: _ClassVar[ErrorType]
    INVALID_VALUE: _ClassVar[ErrorType]
    DATA_COMPACTED: _ClassVar[ErrorType]
    REGIONS_NOT_CONTAIN_ALL_KEY_RANGE: _ClassVar[ErrorType]

class ServiceMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    UNKNOWN_SVC_MODE: _ClassVar[ServiceMode]
    PD_SVC_MODE: _ClassVar[ServiceMode]
    API_SVC_MODE: _ClassVar[ServiceMode]

class OperatorStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SUCCESS: _ClassVar[OperatorStatus]
    TIMEOUT: _ClassVar[OperatorStatus]
    CANCEL: _ClassVar[OperatorStatus]
    REPLACE: _ClassVar[OperatorStatus]
    RUNNING: _ClassVar[OperatorStatus]
OK: ErrorType
UNKNOWN: ErrorType
NOT_BOOTSTRAPPED: ErrorType
STORE_TOMBSTONE: ErrorType
ALREADY_BOOTSTRAPPED: ErrorType
INCOMPATIBLE_VERSION: ErrorType
REGION_NOT_FOUND: ErrorType
GLOBAL_CONFIG_NOT_FOUND: ErrorType
DUPLICATED_ENTRY: ErrorType
ENTRY_NOT_FOUND: ErrorType
INVALID_VALUE: ErrorType
DATA_COMPACTED: ErrorType
REGIONS_NOT_CONTAIN_ALL_KEY_RANGE: ErrorType
UNKNOWN_SVC_MODE: ServiceMode
PD_SVC_MODE: ServiceMode
API_SVC_MODE: ServiceMode
SUCCESS: OperatorStatus
TIMEOUT: OperatorStatus
CANCEL: OperatorStatus
REPLACE: OperatorStatus
RUNNING: OperatorStatus

class RequestHeader(_message.Message):
    __slots__ = ("cluster_id", "sender_id", "caller_id", "caller_component")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    SENDER_ID_FIELD_NUMBER: _ClassVar[int]
    CALLER_ID_FIELD_NUMBER: _ClassVar[int]
    CALLER_COMPONENT_FIELD_NUMBER: _ClassVar[int]
    cluster_id: int
    sender_id: int
    caller_id: str
    caller_component: str
    def __init__(self, cluster_id: _Optional[int] = ..., sender_id: _Optional[int] = ..., caller_id: _Optional[str] = ..., caller_component: _Optional[str] = ...) -> None: ...

class Error(_message.Message):
    __slots__ = ("type", "message")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    type: ErrorType
    message: str
    def __init__(self, type: _Optional[_Union[ErrorType, str]] = ..., message: _Optional[str] = ...) -> None: ...

class ResponseHeader(_message.Message):
    __slots__ = ("cluster_id", "error")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    cluster_id: int
    error: Error
    def __init__(self, cluster_id: _Optional[int] = ..., error: _Optional[_Union[Error, _Mapping]] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ("name", "member_id", "peer_urls", "client_urls", "leader_priority", "deploy_path", "binary_version", "git_hash", "dc_location")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    PEER_URLS_FIELD_NUMBER: _ClassVar[int]
    CLIENT_URLS_FIELD_NUMBER: _ClassVar[int]
    LEADER_PRIORITY_FIELD_NUMBER: _ClassVar[int]
    DEPLOY_PATH_FIELD_NUMBER: _ClassVar[int]
    BINARY_VERSION_FIELD_NUMBER: _ClassVar[int]
    GIT_HASH_FIELD_NUMBER: _ClassVar[int]
    DC_LOCATION_FIELD_NUMBER: _ClassVar[int]
    name: str
    member_id: int
    peer_urls: _containers.RepeatedScalarFieldContainer[str]
    client_urls: _containers.RepeatedScalarFieldContainer[str]
    leader_priority: int
    deploy_path: str
    binary_version: str
    git_hash: str
    dc_location: str
    def __init__(self, name: _Optional[str] = ..., member_id: _Optional[int] = ..., peer_urls: _Optional[_Iterable[str]] = ..., client_urls: _Optional[_Iterable[str]] = ..., leader_priority: _Optional[int] = ..., deploy_path: _Optional[str] = ..., binary_version: _Optional[str] = ..., git_hash: _Optional[str] = ..., dc_location: _Optional[str] = ...) -> None: ...

class GetMembersRequest(_message.Message):
    __slots__ = ("header",)
    HEADER_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ...) -> None: ...

class GetMembersResponse(_message.Message):
    __slots__ = ("header", "members", "leader", "etcd_leader", "tso_allocator_leaders")
    class TsoAllocatorLeadersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Member
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Member, _Mapping]] = ...) -> None: ...
    HEADER_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    ETCD_LEADER_FIELD_NUMBER: _ClassVar[int]
    TSO_ALLOCATOR_LEADERS_FIELD_NUMBER: _ClassVar[int]
    header: ResponseHeader
    members: _containers.RepeatedCompositeFieldContainer[Member]
    leader: Member
    etcd_leader: Member
    tso_allocator_leaders: _containers.MessageMap[str, Member]
    def __init__(self, header: _Optional[_Union[ResponseHeader, _Mapping]] = ..., members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., leader: _Optional[_Union[Member, _Mapping]] = ..., etcd_leader: _Optional[_Union[Member, _Mapping]] = ..., tso_allocator_leaders: _Optional[_Mapping[str, Member]] = ...) -> None: ...

class GetClusterInfoRequest(_message.Message):
    __slots__ = ("header",)
    HEADER_FIELD_NUMBER: _ClassVar[int]
    header: ResponseHeader
    def __init__(self, header: _Optional[_Union[ResponseHeader, _Mapping]] = ...) -> None: ...

class GetClusterInfoResponse(_message.Message):
    __slots__ = ("header", "serviceModes", "tso_urls")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    SERVICEMODES_FIELD_NUMBER: _ClassVar[int]
    TSO_URLS_FIELD_NUMBER: _ClassVar[int]
    header: ResponseHeader
    serviceModes: _containers.RepeatedScalarFieldContainer[ServiceMode]
    tso_urls: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, header: _Optional[_Union[ResponseHeader, _Mapping]] = ..., serviceModes: _Optional[_Iterable[_Union[ServiceMode, str]]] = ..., tso_urls: _Optional[_Iterable[str]] = ...) -> None: ...

class IsBootstrappedRequest(_message.Message):
    __slots__ = ("header",)
    HEADER_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ...) -> None: ...

class IsBootstrappedResponse(_message.Message):
    __slots__ = ("header", "bootstrapped")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    BOOTSTRAPPED_FIELD_NUMBER: _ClassVar[int]
    header: ResponseHeader
    bootstrapped: bool
    def __init__(self, header: _Optional[_Union[ResponseHeader, _Mapping]] = ..., bootstrapped: _Optional[bool] = ...) -> None: ...

class Timestamp(_message.Message):
    __slots__ = ("physical", "logical", "suffix_bits")
    PHYSICAL_FIELD_NUMBER: _ClassVar[int]
    LOGICAL_FIELD_NUMBER: _ClassVar[int]
    SUFFIX_BITS_FIELD_NUMBER: _ClassVar[int]
    physical: int
    logical: int
    suffix_bits: int
    def __init__(self, physical: _Optional[int] = ..., logical: _Optional[int] = ..., suffix_bits: _Optional[int] = ...) -> None: ...

class TsoRequest(_message.Message):
    __slots__ = ("header", "count", "dc_location")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    DC_LOCATION_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    count: int
    dc_location: str
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ..., count: _Optional[int] = ..., dc_location: _Optional[str] = ...) -> None: ...

class TsoResponse(_message.Message):
    __slots__ = ("header", "count", "timestamp")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    header: ResponseHeader
    count: int
    timestamp: Timestamp
    def __init__(self, header: _Optional[_Union[ResponseHeader, _Mapping]] = ..., count: _Optional[int] = ..., timestamp: _Optional[_Union[Timestamp, _Mapping]] = ...) -> None: ...

class GetStoreRequest(_message.Message):
    __slots__ = ("header", "store_id")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    STORE_ID_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    store_id: int
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ..., store_id: _Optional[int] = ...) -> None: ...

class GetStoreResponse(_message.Message):
    __slots__ = ("header", "store")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    header: ResponseHeader
    store: _metapb_pb2.Store
    def __init__(self, header: _Optional[_Union[ResponseHeader, _Mapping]] = ..., store: _Optional[_Union[_metapb_pb2.Store, _Mapping]] = ...) -> None: ...

class GetAllStoresRequest(_message.Message):
    __slots__ = ("header", "exclude_tombstone_stores")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    EXCLUDE_TOMBSTONE_STORES_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    exclude_tombstone_stores: bool
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ..., exclude_tombstone_stores: _Optional[bool] = ...) -> None: ...

class GetAllStoresResponse(_message.Message):
    __slots__ = ("header", "stores")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    STORES_FIELD_NUMBER: _ClassVar[int]
    header: ResponseHeader
    stores: _containers.RepeatedCompositeFieldContainer[_metapb_pb2.Store]
    def __init__(self, header: _Optional[_Union[ResponseHeader, _Mapping]] = ..., stores: _Optional[_Iterable[_Union[_metapb_pb2.Store, _Mapping]]] = ...) -> None: ...

class GetRegionRequest(_message.Message):
    __slots__ = ("header", "region_key", "need_buckets")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    REGION_KEY_FIELD_NUMBER: _ClassVar[int]
    NEED_BUCKETS_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    region_key: bytes
    need_buckets: bool
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ..., region_key: _Optional[bytes] = ..., need_buckets: _Optional[bool] = ...) -> None: ...

class GetRegionByIDRequest(_message.Message):
    __slots__ = ("header", "region_id", "need_buckets")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    REGION_ID_FIELD_NUMBER: _ClassVar[int]
    NEED_BUCKETS_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    region_id: int
    need_buckets: bool
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ..., region_id: _Optional[int] = ..., need_buckets: _Optional[bool] = ...) -> None: ...

class GetRegionResponse(_message.Message):
    __slots__ = ("header", "region", "leader")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    REGION_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    header: ResponseHeader
    region: _metapb_pb2.Region
    leader: _metapb_pb2.Peer
    def __init__(self, header: _Optional[_Union[ResponseHeader, _Mapping]] = ..., region: _Optional[_Union[_metapb_pb2.Region, _Mapping]] = ..., leader: _Optional[_Union[_metapb_pb2.Peer, _Mapping]] = ...) -> None: ...

class ScanRegionsRequest(_message.Message):
    __slots__ = ("header", "start_key", "limit", "end_key")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    START_KEY_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    END_KEY_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    start_key: bytes
    limit: int
    end_key: bytes
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ..., start_key: _Optional[bytes] = ..., limit: _Optional[int] = ..., end_key: _Optional[bytes] = ...) -> None: ...

class Region(_message.Message):
    __slots__ = ("region", "leader")
    REGION_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    region: _metapb_pb2.Region
    leader: _metapb_pb2.Peer
    def __init__(self, region: _Optional[_Union[_metapb_pb2.Region, _Mapping]] = ..., leader: _Optional[_Union[_metapb_pb2.Peer, _Mapping]] = ...) -> None: ...

class ScanRegionsResponse(_message.Message):
    __slots__ = ("header", "region_metas", "leaders", "regions")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    REGION_METAS_FIELD_NUMBER: _ClassVar[int]
    LEADERS_FIELD_NUMBER: _ClassVar[int]
    REGIONS_FIELD_NUMBER: _ClassVar[int]
    header: ResponseHeader
    region_metas: _containers.RepeatedCompositeFieldContainer[_metapb_pb2.Region]
    leaders: _containers.RepeatedCompositeFieldContainer[_metapb_pb2.Peer]
    regions: _containers.RepeatedCompositeFieldContainer[Region]
    def __init__(self, header: _Optional[_Union[ResponseHeader, _Mapping]] = ..., region_metas: _Optional[_Iterable[_Union[_metapb_pb2.Region, _Mapping]]] = ..., leaders: _Optional[_Iterable[_Union[_metapb_pb2.Peer, _Mapping]]] = ..., regions: _Optional[_Iterable[_Union[Region, _Mapping]]] = ...) -> None: ...

class KeyRange(_message.Message):
    __slots__ = ("start_key", "end_key")
    START_KEY_FIELD_NUMBER: _ClassVar[int]
    END_KEY_FIELD_NUMBER: _ClassVar[int]
    start_key: bytes
    end_key: bytes
    def __init__(self, start_key: _Optional[bytes] = ..., end_key: _Optional[bytes] = ...) -> None: ...

class BatchScanRegionsRequest(_message.Message):
    __slots__ = ("header", "need_buckets", "ranges", "limit", "contain_all_key_range")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    NEED_BUCKETS_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    CONTAIN_ALL_KEY_RANGE_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    need_buckets: bool
    ranges: _containers.RepeatedCompositeFieldContainer[KeyRange]
    limit: int
    contain_all_key_range: bool
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ..., need_buckets: _Optional[bool] = ..., ranges: _Optional[_Iterable[_Union[KeyRange, _Mapping]]] = ..., limit: _Optional[int] = ..., contain_all_key_range: _Optional[bool] = ...) -> None: ...

class BatchScanRegionsResponse(_message.Message):
    __slots__ = ("header", "regions")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    REGIONS_FIELD_NUMBER: _ClassVar[int]
    header: ResponseHeader
    regions: _containers.RepeatedCompositeFieldContainer[Region]
    def __init__(self, header: _Optional[_Union[ResponseHeader, _Mapping]] = ..., regions: _Optional[_Iterable[_Union[Region, _Mapping]]] = ...) -> None: ...

class GetGCSafePointRequest(_message.Message):
    __slots__ = ("header",)
    HEADER_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ...) -> None: ...

class GetGCSafePointResponse(_message.Message):
    __slots__ = ("header", "safe_point")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    SAFE_POINT_FIELD_NUMBER: _ClassVar[int]
    header: ResponseHeader
    safe_point: int
    def __init__(self, header: _Optional[_Union[ResponseHeader, _Mapping]] = ..., safe_point: _Optional[int] = ...) -> None: ...

class UpdateGCSafePointRequest(_message.Message):
    __slots__ = ("header", "safe_point")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    SAFE_POINT_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    safe_point: int
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ..., safe_point: _Optional[int] = ...) -> None: ...

class UpdateGCSafePointResponse(_message.Message):
    __slots__ = ("header", "new_safe_point")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    NEW_SAFE_POINT_FIELD_NUMBER: _ClassVar[int]
    header: ResponseHeader
    new_safe_point: int
    def __init__(self, header: _Optional[_Union[ResponseHeader, _Mapping]] = ..., new_safe_point: _Optional[int] = ...) -> None: ...

class UpdateServiceGCSafePointRequest(_message.Message):
    __slots__ = ("header", "service_id", "TTL", "safe_point")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    SERVICE_ID_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    SAFE_POINT_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    service_id: bytes
    TTL: int
    safe_point: int
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ..., service_id: _Optional[bytes] = ..., TTL: _Optional[int] = ..., safe_point: _Optional[int] = ...) -> None: ...

class UpdateServiceGCSafePointResponse(_message.Message):
    __slots__ = ("header", "service_id", "TTL", "min_safe_point")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    SERVICE_ID_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    MIN_SAFE_POINT_FIELD_NUMBER: _ClassVar[int]
    header: ResponseHeader
    service_id: bytes
    TTL: int
    min_safe_point: int
    def __init__(self, header: _Optional[_Union[ResponseHeader, _Mapping]] = ..., service_id: _Optional[bytes] = ..., TTL: _Optional[int] = ..., min_safe_point: _Optional[int] = ...) -> None: ...

class KeyspaceScope(_message.Message):
    __slots__ = ("keyspace_id",)
    KEYSPACE_ID_FIELD_NUMBER: _ClassVar[int]
    keyspace_id: int
    def __init__(self, keyspace_id: _Optional[int] = ...) -> None: ...

class GCBarrierInfo(_message.Message):
    __slots__ = ("barrier_id", "barrier_ts", "ttl_seconds")
    BARRIER_ID_FIELD_NUMBER: _ClassVar[int]
    BARRIER_TS_FIELD_NUMBER: _ClassVar[int]
    TTL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    barrier_id: str
    barrier_ts: int
    ttl_seconds: int
    def __init__(self, barrier_id: _Optional[str] = ..., barrier_ts: _Optional[int] = ..., ttl_seconds: _Optional[int] = ...) -> None: ...

class GCState(_message.Message):
    __slots__ = ("keyspace_scope", "is_keyspace_level_gc", "txn_safe_point", "gc_safe_point", "gc_barriers")
    KEYSPACE_SCOPE_FIELD_NUMBER: _ClassVar[int]
    IS_KEYSPACE_LEVEL_GC_FIELD_NUMBER: _ClassVar[int]
    TXN_SAFE_POINT_FIELD_NUMBER: _ClassVar[int]
    GC_SAFE_POINT_FIELD_NUMBER: _ClassVar[int]
    GC_BARRIERS_FIELD_NUMBER: _ClassVar[int]
    keyspace_scope: KeyspaceScope
    is_keyspace_level_gc: bool
    txn_safe_point: int
    gc_safe_point: int
    gc_barriers: _containers.RepeatedCompositeFieldContainer[GCBarrierInfo]
    def __init__(self, keyspace_scope: _Optional[_Union[KeyspaceScope, _Mapping]] = ..., is_keyspace_level_gc: _Optional[bool] = ..., txn_safe_point: _Optional[int] = ..., gc_safe_point: _Optional[int] = ..., gc_barriers: _Optional[_Iterable[_Union[GCBarrierInfo, _Mapping]]] = ...) -> None: ...

class GetGCStateRequest(_message.Message):
    __slots__ = ("header", "keyspace_scope", "exclude_gc_barriers")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    KEYSPACE_SCOPE_FIELD_NUMBER: _ClassVar[int]
    EXCLUDE_GC_BARRIERS_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    keyspace_scope: KeyspaceScope
    exclude_gc_barriers: bool
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ..., keyspace_scope: _Optional[_Union[KeyspaceScope, _Mapping]] = ..., exclude_gc_barriers: _Optional[bool] = ...) -> None: ...

class GetGCStateResponse(_message.Message):
    __slots__ = ("header", "gc_state")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    GC_STATE_FIELD_NUMBER: _ClassVar[int]
    header: ResponseHeader
    gc_state: GCState
    def __init__(self, header: _Optional[_Union[ResponseHeader, _Mapping]] = ..., gc_state: _Optional[_Union[GCState, _Mapping]] = ...) -> None: ...

class SetGCBarrierRequest(_message.Message):
    __slots__ = ("header", "keyspace_scope", "barrier_id", "barrier_ts", "ttl_seconds")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    KEYSPACE_SCOPE_FIELD_NUMBER: _ClassVar[int]
    BARRIER_ID_FIELD_NUMBER: _ClassVar[int]
    BARRIER_TS_FIELD_NUMBER: _ClassVar[int]
    TTL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    keyspace_scope: KeyspaceScope
    barrier_id: str
    barrier_ts: int
    ttl_seconds: int
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ..., keyspace_scope: _Optional[_Union[KeyspaceScope, _Mapping]] = ..., barrier_id: _Optional[str] = ..., barrier_ts: _Optional[int] = ..., ttl_seconds: _Optional[int] = ...) -> None: ...

class SetGCBarrierResponse(_message.Message):
    __slots__ = ("header", "new_barrier_info")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    NEW_BARRIER_INFO_FIELD_NUMBER: _ClassVar[int]
    header: ResponseHeader
    new_barrier_info: GCBarrierInfo
    def __init__(self, header: _Optional[_Union[ResponseHeader, _Mapping]] = ..., new_barrier_info: _Optional[_Union[GCBarrierInfo, _Mapping]] = ...) -> None: ...

class DeleteGCBarrierRequest(_message.Message):
    __slots__ = ("header", "keyspace_scope", "barrier_id")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    KEYSPACE_SCOPE_FIELD_NUMBER: _ClassVar[int]
    BARRIER_ID_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    keyspace_scope: KeyspaceScope
    barrier_id: str
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ..., keyspace_scope: _Optional[_Union[KeyspaceScope, _Mapping]] = ..., barrier_id: _Optional[str] = ...) -> None: ...

class DeleteGCBarrierResponse(_message.Message):
    __slots__ = ("header", "deleted_barrier_info")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    DELETED_BARRIER_INFO_FIELD_NUMBER: _ClassVar[int]
    header: ResponseHeader
    deleted_barrier_info: GCBarrierInfo
    def __init__(self, header: _Optional[_Union[ResponseHeader, _Mapping]] = ..., deleted_barrier_info: _Optional[_Union[GCBarrierInfo, _Mapping]] = ...) -> None: ...

class GetMinTSRequest(_message.Message):
    __slots__ = ("header",)
    HEADER_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ...) -> None: ...

class GetMinTSResponse(_message.Message):
    __slots__ = ("header", "timestamp")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    header: ResponseHeader
    timestamp: Timestamp
    def __init__(self, header: _Optional[_Union[ResponseHeader, _Mapping]] = ..., timestamp: _Optional[_Union[Timestamp, _Mapping]] = ...) -> None: ...

class AllocIDRequest(_message.Message):
    __slots__ = ("header",)
    HEADER_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ...) -> None: ...

class AllocIDResponse(_message.Message):
    __slots__ = ("header", "id")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    header: ResponseHeader
    id: int
    def __init__(self, header: _Optional[_Union[ResponseHeader, _Mapping]] = ..., id: _Optional[int] = ...) -> None: ...

class StoreStats(_message.Message):
    __slots__ = ("store_id", "capacity", "available", "region_count", "start_time", "is_busy")
    STORE_ID_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    AVAILABLE_FIELD_NUMBER: _ClassVar[int]
    REGION_COUNT_FIELD_NUMBER: _ClassVar[int]
    START_TIME_FIELD_NUMBER: _ClassVar[int]
    IS_BUSY_FIELD_NUMBER: _ClassVar[int]
    store_id: int
    capacity: int
    available: int
    region_count: int
    start_time: int
    is_busy: bool
    def __init__(self, store_id: _Optional[int] = ..., capacity: _Optional[int] = ..., available: _Optional[int] = ..., region_count: _Optional[int] = ..., start_time: _Optional[int] = ..., is_busy: _Optional[bool] = ...) -> None: ...

class StoreHeartbeatRequest(_message.Message):
    __slots__ = ("header", "stats")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    STATS_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    stats: StoreStats
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ..., stats: _Optional[_Union[StoreStats, _Mapping]] = ...) -> None: ...

class StoreHeartbeatResponse(_message.Message):
    __slots__ = ("header", "cluster_version")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_VERSION_FIELD_NUMBER: _ClassVar[int]
    header: ResponseHeader
    cluster_version: str
    def __init__(self, header: _Optional[_Union[ResponseHeader, _Mapping]] = ..., cluster_version: _Optional[str] = ...) -> None: ...

class QueryRegionRequest(_message.Message):
    __slots__ = ("header", "need_buckets", "ids", "keys", "prev_keys")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    NEED_BUCKETS_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    PREV_KEYS_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    need_buckets: bool
    ids: _containers.RepeatedScalarFieldContainer[int]
    keys: _containers.RepeatedScalarFieldContainer[bytes]
    prev_keys: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ..., need_buckets: _Optional[bool] = ..., ids: _Optional[_Iterable[int]] = ..., keys: _Optional[_Iterable[bytes]] = ..., prev_keys: _Optional[_Iterable[bytes]] = ...) -> None: ...

class RegionResponse(_message.Message):
    __slots__ = ("region", "leader")
    REGION_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    region: _metapb_pb2.Region
    leader: _metapb_pb2.Peer
    def __init__(self, region: _Optional[_Union[_metapb_pb2.Region, _Mapping]] = ..., leader: _Optional[_Union[_metapb_pb2.Peer, _Mapping]] = ...) -> None: ...

class QueryRegionResponse(_message.Message):
    __slots__ = ("header", "key_id_map", "prev_key_id_map", "regions_by_id")
    class RegionsByIdEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: RegionResponse
        def __init__(self, key: _Optional[int] = ..., value: _Optional[_Union[RegionResponse, _Mapping]] = ...) -> None: ...
    HEADER_FIELD_NUMBER: _ClassVar[int]
    KEY_ID_MAP_FIELD_NUMBER: _ClassVar[int]
    PREV_KEY_ID_MAP_FIELD_NUMBER: _ClassVar[int]
    REGIONS_BY_ID_FIELD_NUMBER: _ClassVar[int]
    header: ResponseHeader
    key_id_map: _containers.RepeatedScalarFieldContainer[int]
    prev_key_id_map: _containers.RepeatedScalarFieldContainer[int]
    regions_by_id: _containers.MessageMap[int, RegionResponse]
    def __init__(self, header: _Optional[_Union[ResponseHeader, _Mapping]] = ..., key_id_map: _Optional[_Iterable[int]] = ..., prev_key_id_map: _Optional[_Iterable[int]] = ..., regions_by_id: _Optional[_Mapping[int, RegionResponse]] = ...) -> None: ...

class SplitRegionsRequest(_message.Message):
    __slots__ = ("header", "split_keys", "retry_limit")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    SPLIT_KEYS_FIELD_NUMBER: _ClassVar[int]
    RETRY_LIMIT_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    split_keys: _containers.RepeatedScalarFieldContainer[bytes]
    retry_limit: int
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ..., split_keys: _Optional[_Iterable[bytes]] = ..., retry_limit: _Optional[int] = ...) -> None: ...

class SplitRegionsResponse(_message.Message):
    __slots__ = ("header", "finished_percentage", "regions_id")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    FINISHED_PERCENTAGE_FIELD_NUMBER: _ClassVar[int]
    REGIONS_ID_FIELD_NUMBER: _ClassVar[int]
    header: ResponseHeader
    finished_percentage: int
    regions_id: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, header: _Optional[_Union[ResponseHeader, _Mapping]] = ..., finished_percentage: _Optional[int] = ..., regions_id: _Optional[_Iterable[int]] = ...) -> None: ...

class SplitAndScatterRegionsRequest(_message.Message):
    __slots__ = ("header", "split_keys", "group", "retry_limit")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    SPLIT_KEYS_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    RETRY_LIMIT_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    split_keys: _containers.RepeatedScalarFieldContainer[bytes]
    group: str
    retry_limit: int
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ..., split_keys: _Optional[_Iterable[bytes]] = ..., group: _Optional[str] = ..., retry_limit: _Optional[int] = ...) -> None: ...

class SplitAndScatterRegionsResponse(_message.Message):
    __slots__ = ("header", "split_finished_percentage", "scatter_finished_percentage", "regions_id")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    SPLIT_FINISHED_PERCENTAGE_FIELD_NUMBER: _ClassVar[int]
    SCATTER_FINISHED_PERCENTAGE_FIELD_NUMBER: _ClassVar[int]
    REGIONS_ID_FIELD_NUMBER: _ClassVar[int]
    header: ResponseHeader
    split_finished_percentage: int
    scatter_finished_percentage: int
    regions_id: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, header: _Optional[_Union[ResponseHeader, _Mapping]] = ..., split_finished_percentage: _Optional[int] = ..., scatter_finished_percentage: _Optional[int] = ..., regions_id: _Optional[_Iterable[int]] = ...) -> None: ...

class ScatterRegionRequest(_message.Message):
    __slots__ = ("header", "region_id", "region", "leader", "group", "regions_id", "retry_limit", "skip_store_limit")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    REGION_ID_FIELD_NUMBER: _ClassVar[int]
    REGION_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    REGIONS_ID_FIELD_NUMBER: _ClassVar[int]
    RETRY_LIMIT_FIELD_NUMBER: _ClassVar[int]
    SKIP_STORE_LIMIT_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    region_id: int
    region: _metapb_pb2.Region
    leader: _metapb_pb2.Peer
    group: str
    regions_id: _containers.RepeatedScalarFieldContainer[int]
    retry_limit: int
    skip_store_limit: bool
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ..., region_id: _Optional[int] = ..., region: _Optional[_Union[_metapb_pb2.Region, _Mapping]] = ..., leader: _Optional[_Union[_metapb_pb2.Peer, _Mapping]] = ..., group: _Optional[str] = ..., regions_id: _Optional[_Iterable[int]] = ..., retry_limit: _Optional[int] = ..., skip_store_limit: _Optional[bool] = ...) -> None: ...

class ScatterRegionResponse(_message.Message):
    __slots__ = ("header", "finished_percentage")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    FINISHED_PERCENTAGE_FIELD_NUMBER: _ClassVar[int]
    header: ResponseHeader
    finished_percentage: int
    def __init__(self, header: _Optional[_Union[ResponseHeader, _Mapping]] = ..., finished_percentage: _Optional[int] = ...) -> None: ...

class GetOperatorRequest(_message.Message):
    __slots__ = ("header", "region_id")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    REGION_ID_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    region_id: int
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ..., region_id: _Optional[int] = ...) -> None: ...

class GetOperatorResponse(_message.Message):
    __slots__ = ("header", "region_id", "desc", "status", "kind")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    REGION_ID_FIELD_NUMBER: _ClassVar[int]
    DESC_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    header: ResponseHeader
    region_id: int
    desc: bytes
    status: OperatorStatus
    kind: bytes
    def __init__(self, header: _Optional[_Union[ResponseHeader, _Mapping]] = ..., region_id: _Optional[int] = ..., desc: _Optional[bytes] = ..., status: _Optional[_Union[OperatorStatus, str]] = ..., kind: _Optional[bytes] = ...) -> None: ...
