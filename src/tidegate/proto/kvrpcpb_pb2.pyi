from tidegate.proto import errorpb_pb2 as _errorpb_pb2
from tidegate.proto import metapb_pb2 as _metapb_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CommandPri(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    Normal: _ClassVar[CommandPri]
    Low: _ClassVar[CommandPri]
    High: _ClassVar[CommandPri]

class IsolationLevel(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SI: _ClassVar[IsolationLevel]
    RC: _ClassVar[IsolationLevel]
    RCCheckTS: _ClassVar[IsolationLevel]

class APIVersion(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    V1: _ClassVar[APIVersion]
    V1TTL: _ClassVar[APIVersion]
    V2: _ClassVar[APIVersion]
    V3: _ClassVar[APIVersion]

class ExtraOp(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    Noop: _ClassVar[ExtraOp]
    ReadOldValue: _ClassVar[ExtraOp]

class Op(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    Put: _ClassVar[Op]
    Del: _ClassVar[Op]
    Lock: _ClassVar[Op]
    Rollback: _ClassVar[Op]
    Insert: _ClassVar[Op]
    PessimisticLock: _ClassVar[Op]
    CheckNotExists: _ClassVar[Op]
    SharedLock: _ClassVar[Op]
    SharedPessimisticLock: _ClassVar[Op]

class Assertion(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    Exist: _ClassVar[Assertion]
    NotExist: _ClassVar[Assertion]

class AssertionLevel(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    Off: _ClassVar[AssertionLevel]
    Fast: _ClassVar[AssertionLevel]
    Strict: _ClassVar[AssertionLevel]

class PessimisticLockWakeUpMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WakeUpModeNormal: _ClassVar[PessimisticLockWakeUpMode]
    WakeUpModeForceLock: _ClassVar[PessimisticLockWakeUpMode]

class PessimisticLockKeyResultType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LockResultNormal: _ClassVar[PessimisticLockKeyResultType]
    LockResultLockedWithConflict: _ClassVar[PessimisticLockKeyResultType]
    LockResultFailed: _ClassVar[PessimisticLockKeyResultType]

class CommitRole(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    Unknown: _ClassVar[CommitRole]
    Primary: _ClassVar[CommitRole]
    Secondary: _ClassVar[CommitRole]

class Action(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NoAction: _ClassVar[Action]
    TTLExpireRollback: _ClassVar[Action]
    LockNotExistRollback: _ClassVar[Action]
    MinCommitTSPushed: _ClassVar[Action]
    TTLExpirePessimisticRollback: _ClassVar[Action]
    LockNotExistDoNothing: _ClassVar[Action]

class ChecksumAlgorithm(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    Crc64_Xor: _ClassVar[ChecksumAlgorithm]
Normal: CommandPri
Low: CommandPri
High: CommandPri
SI: IsolationLevel
RC: IsolationLevel
RCCheckTS: IsolationLevel
V1: APIVersion
V1TTL: APIVersion
V2: APIVersion
V3: APIVersion
Noop: ExtraOp
ReadOldValue: ExtraOp
Put: Op
Del: Op
Lock: Op
Rollback: Op
Insert: Op
PessimisticLock: Op
CheckNotExists: Op
SharedLock: Op
SharedPessimisticLock: Op
Exist: Assertion
NotExist: Assertion
Off: AssertionLevel
Fast: AssertionLevel
Strict: AssertionLevel
WakeUpModeNormal: PessimisticLockWakeUpMode
WakeUpModeForceLock: PessimisticLockWakeUpMode
LockResultNormal: PessimisticLockKeyResultType
LockResultLockedWithConflict: PessimisticLockKeyResultType
LockResultFailed: PessimisticLockKeyResultType
Unknown: CommitRole
Primary: CommitRole
Secondary: CommitRole
NoAction: Action
TTLExpireRollback: Action
LockNotExistRollback: Action
MinCommitTSPushed: Action
TTLExpirePessimisticRollback: Action
LockNotExistDoNothing: Action
Crc64_Xor: ChecksumAlgorithm

class Context(_message.Message):
    __slots__ = ("region_id", "region_epoch", "peer", "term", "priority", "isolation_level", "not_fill_cache", "replica_read", "resolved_locks", "max_execution_duration_ms", "stale_read", "is_retry_request", "api_version", "committed_locks", "request_source", "txn_source", "busy_threshold_ms", "keyspace_id", "cluster_id")
    REGION_ID_FIELD_NUMBER: _ClassVar[int]
    REGION_EPOCH_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    ISOLATION_LEVEL_FIELD_NUMBER: _ClassVar[int]
    NOT_FILL_CACHE_FIELD_NUMBER: _ClassVar[int]
    REPLICA_READ_FIELD_NUMBER: _ClassVar[int]
    RESOLVED_LOCKS_FIELD_NUMBER: _ClassVar[int]
    MAX_EXECUTION_DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    STALE_READ_FIELD_NUMBER: _ClassVar[int]
    IS_RETRY_REQUEST_FIELD_NUMBER: _ClassVar[int]
    API_VERSION_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_LOCKS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_SOURCE_FIELD_NUMBER: _ClassVar[int]
    TXN_SOURCE_FIELD_NUMBER: _ClassVar[int]
    BUSY_THRESHOLD_MS_FIELD_NUMBER: _ClassVar[int]
    KEYSPACE_ID_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    region_id: int
    region_epoch: _metapb_pb2.RegionEpoch
    peer: _metapb_pb2.Peer
    term: int
    priority: CommandPri
    isolation_level: IsolationLevel
    not_fill_cache: bool
    replica_read: bool
    resolved_locks: _containers.RepeatedScalarFieldContainer[int]
    max_execution_duration_ms: int
    stale_read: bool
    is_retry_request: bool
    api_version: APIVersion
    committed_locks: _containers.RepeatedScalarFieldContainer[int]
    request_source: str
    txn_source: int
    busy_threshold_ms: int
    keyspace_id: int
    cluster_id: int
    def __init__(self, region_id: _Optional[int] = ..., region_epoch: _Optional[_Union[_metapb_pb2.RegionEpoch, _Mapping]] = ..., peer: _Optional[_Union[_metapb_pb2.Peer, _Mapping]] = ..., term: _Optional[int] = ..., priority: _Optional[_Union[CommandPri, str]] = ..., isolation_level: _Optional[_Union[IsolationLevel, str]] = ..., not_fill_cache: _Optional[bool] = ..., replica_read: _Optional[bool] = ..., resolved_locks: _Optional[_Iterable[int]] = ..., max_execution_duration_ms: _Optional[int] = ..., stale_read: _Optional[bool] = ..., is_retry_request: _Optional[bool] = ..., api_version: _Optional[_Union[APIVersion, str]] = ..., committed_locks: _Optional[_Iterable[int]] = ..., request_source: _Optional[str] = ..., txn_source: _Optional[int] = ..., busy_threshold_ms: _Optional[int] = ..., keyspace_id: _Optional[int] = ..., cluster_id: _Optional[int] = ...) -> None: ...

class Mutation(_message.Message):
    __slots__ = ("op", "key", "value", "assertion")
    OP_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    ASSERTION_FIELD_NUMBER: _ClassVar[int]
    op: Op
    key: bytes
    value: bytes
    assertion: Assertion
    def __init__(self, op: _Optional[_Union[Op, str]] = ..., key: _Optional[bytes] = ..., value: _Optional[bytes] = ..., assertion: _Optional[_Union[Assertion, str]] = ...) -> None: ...

class LockInfo(_message.Message):
    __slots__ = ("primary_lock", "lock_version", "key", "lock_ttl", "txn_size", "lock_type", "lock_for_update_ts", "use_async_commit", "min_commit_ts", "secondaries", "duration_to_last_update_ms")
    PRIMARY_LOCK_FIELD_NUMBER: _ClassVar[int]
    LOCK_VERSION_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    LOCK_TTL_FIELD_NUMBER: _ClassVar[int]
    TXN_SIZE_FIELD_NUMBER: _ClassVar[int]
    LOCK_TYPE_FIELD_NUMBER: _ClassVar[int]
    LOCK_FOR_UPDATE_TS_FIELD_NUMBER: _ClassVar[int]
    USE_ASYNC_COMMIT_FIELD_NUMBER: _ClassVar[int]
    MIN_COMMIT_TS_FIELD_NUMBER: _ClassVar[int]
    SECONDARIES_FIELD_NUMBER: _ClassVar[int]
    DURATION_TO_LAST_UPDATE_MS_FIELD_NUMBER: _ClassVar[int]
    primary_lock: bytes
    lock_version: int
    key: bytes
    lock_ttl: int
    txn_size: int
    lock_type: Op
    lock_for_update_ts: int
    use_async_commit: bool
    min_commit_ts: int
    secondaries: _containers.RepeatedScalarFieldContainer[bytes]
    duration_to_last_update_ms: int
    def __init__(self, primary_lock: _Optional[bytes] = ..., lock_version: _Optional[int] = ..., key: _Optional[bytes] = ..., lock_ttl: _Optional[int] = ..., txn_size: _Optional[int] = ..., lock_type: _Optional[_Union[Op, str]] = ..., lock_for_update_ts: _Optional[int] = ..., use_async_commit: _Optional[bool] = ..., min_commit_ts: _Optional[int] = ..., secondaries: _Optional[_Iterable[bytes]] = ..., duration_to_last_update_ms: _Optional[int] = ...) -> None: ...

class WriteConflict(_message.Message):
    __slots__ = ("start_ts", "conflict_ts", "key", "primary", "conflict_commit_ts", "reason")
    class Reason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        Unknown: _ClassVar[WriteConflict.Reason]
        Optimistic: _ClassVar[WriteConflict.Reason]
        PessimisticRetry: _ClassVar[WriteConflict.Reason]
        SelfRolledBack: _ClassVar[WriteConflict.Reason]
        RcCheckTs: _ClassVar[WriteConflict.Reason]
        LazyUniquenessCheck: _ClassVar[WriteConflict.Reason]
        NotLockedKeyConflict: _ClassVar[WriteConflict.Reason]
    Unknown: WriteConflict.Reason
    Optimistic: WriteConflict.Reason
    PessimisticRetry: WriteConflict.Reason
    SelfRolledBack: WriteConflict.Reason
    RcCheckTs: WriteConflict.Reason
    LazyUniquenessCheck: WriteConflict.Reason
    NotLockedKeyConflict: WriteConflict.Reason
    START_TS_FIELD_NUMBER: _ClassVar[int]
    CONFLICT_TS_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    PRIMARY_FIELD_NUMBER: _ClassVar[int]
    CONFLICT_COMMIT_TS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    start_ts: int
    conflict_ts: int
    key: bytes
    primary: bytes
    conflict_commit_ts: int
    reason: WriteConflict.Reason
    def __init__(self, start_ts: _Optional[int] = ..., conflict_ts: _Optional[int] = ..., key: _Optional[bytes] = ..., primary: _Optional[bytes] = ..., conflict_commit_ts: _Optional[int] = ..., reason: _Optional[_Union[WriteConflict.Reason, str]] = ...) -> None: ...

class AlreadyExist(_message.Message):
    __slots__ = ("key",)
    KEY_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    def __init__(self, key: _Optional[bytes] = ...) -> None: ...

class WaitForEntry(_message.Message):
    __slots__ = ("txn", "wait_for_txn", "key_hash", "key", "resource_group_tag", "wait_time")
    TXN_FIELD_NUMBER: _ClassVar[int]
    WAIT_FOR_TXN_FIELD_NUMBER: _ClassVar[int]
    KEY_HASH_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_GROUP_TAG_FIELD_NUMBER: _ClassVar[int]
    WAIT_TIME_FIELD_NUMBER: _ClassVar[int]
    txn: int
    wait_for_txn: int
    key_hash: int
    key: bytes
    resource_group_tag: bytes
    wait_time: int
    def __init__(self, txn: _Optional[int] = ..., wait_for_txn: _Optional[int] = ..., key_hash: _Optional[int] = ..., key: _Optional[bytes] = ..., resource_group_tag: _Optional[bytes] = ..., wait_time: _Optional[int] = ...) -> None: ...

class Deadlock(_message.Message):
    __slots__ = ("lock_ts", "lock_key", "deadlock_key_hash", "wait_chain", "deadlock_key")
    LOCK_TS_FIELD_NUMBER: _ClassVar[int]
    LOCK_KEY_FIELD_NUMBER: _ClassVar[int]
    DEADLOCK_KEY_HASH_FIELD_NUMBER: _ClassVar[int]
    WAIT_CHAIN_FIELD_NUMBER: _ClassVar[int]
    DEADLOCK_KEY_FIELD_NUMBER: _ClassVar[int]
    lock_ts: int
    lock_key: bytes
    deadlock_key_hash: int
    wait_chain: _containers.RepeatedCompositeFieldContainer[WaitForEntry]
    deadlock_key: bytes
    def __init__(self, lock_ts: _Optional[int] = ..., lock_key: _Optional[bytes] = ..., deadlock_key_hash: _Optional[int] = ..., wait_chain: _Optional[_Iterable[_Union[WaitForEntry, _Mapping]]] = ..., deadlock_key: _Optional[bytes] = ...) -> None: ...

class CommitTsExpired(_message.Message):
    __slots__ = ("start_ts", "attempted_commit_ts", "key", "min_commit_ts")
    START_TS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTED_COMMIT_TS_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    MIN_COMMIT_TS_FIELD_NUMBER: _ClassVar[int]
    start_ts: int
    attempted_commit_ts: int
    key: bytes
    min_commit_ts: int
    def __init__(self, start_ts: _Optional[int] = ..., attempted_commit_ts: _Optional[int] = ..., key: _Optional[bytes] = ..., min_commit_ts: _Optional[int] = ...) -> None: ...

class TxnNotFound(_message.Message):
    __slots__ = ("start_ts", "primary_key")
    START_TS_FIELD_NUMBER: _ClassVar[int]
    PRIMARY_KEY_FIELD_NUMBER: _ClassVar[int]
    start_ts: int
    primary_key: bytes
    def __init__(self, start_ts: _Optional[int] = ..., primary_key: _Optional[bytes] = ...) -> None: ...

class CommitTsTooLarge(_message.Message):
    __slots__ = ("commit_ts",)
    COMMIT_TS_FIELD_NUMBER: _ClassVar[int]
    commit_ts: int
    def __init__(self, commit_ts: _Optional[int] = ...) -> None: ...

class AssertionFailed(_message.Message):
    __slots__ = ("start_ts", "key", "assertion", "existing_start_ts", "existing_commit_ts")
    START_TS_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    ASSERTION_FIELD_NUMBER: _ClassVar[int]
    EXISTING_START_TS_FIELD_NUMBER: _ClassVar[int]
    EXISTING_COMMIT_TS_FIELD_NUMBER: _ClassVar[int]
    start_ts: int
    key: bytes
    assertion: Assertion
    existing_start_ts: int
    existing_commit_ts: int
    def __init__(self, start_ts: _Optional[int] = ..., key: _Optional[bytes] = ..., assertion: _Optional[_Union[Assertion, str]] = ..., existing_start_ts: _Optional[int] = ..., existing_commit_ts: _Optional[int] = ...) -> None: ...

class PrimaryMismatch(_message.Message):
    __slots__ = ("lock_info",)
    LOCK_INFO_FIELD_NUMBER: _ClassVar[int]
    lock_info: LockInfo
    def __init__(self, lock_info: _Optional[_Union[LockInfo, _Mapping]] = ...) -> None: ...

class TxnLockNotFound(_message.Message):
    __slots__ = ("key",)
    KEY_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    def __init__(self, key: _Optional[bytes] = ...) -> None: ...

class KeyError(_message.Message):
    __slots__ = ("locked", "retryable", "abort", "conflict", "already_exist", "deadlock", "commit_ts_expired", "txn_not_found", "commit_ts_too_large", "assertion_failed", "primary_mismatch", "txn_lock_not_found")
    LOCKED_FIELD_NUMBER: _ClassVar[int]
    RETRYABLE_FIELD_NUMBER: _ClassVar[int]
    ABORT_FIELD_NUMBER: _ClassVar[int]
    CONFLICT_FIELD_NUMBER: _ClassVar[int]
    ALREADY_EXIST_FIELD_NUMBER: _ClassVar[int]
    DEADLOCK_FIELD_NUMBER: _ClassVar[int]
    COMMIT_TS_EXPIRED_FIELD_NUMBER: _ClassVar[int]
    TXN_NOT_FOUND_FIELD_NUMBER: _ClassVar[int]
    COMMIT_TS_TOO_LARGE_FIELD_NUMBER: _ClassVar[int]
    ASSERTION_FAILED_FIELD_NUMBER: _ClassVar[int]
    PRIMARY_MISMATCH_FIELD_NUMBER: _ClassVar[int]
    TXN_LOCK_NOT_FOUND_FIELD_NUMBER: _ClassVar[int]
    locked: LockInfo
    retryable: str
    abort: str
    conflict: WriteConflict
    already_exist: AlreadyExist
    deadlock: Deadlock
    commit_ts_expired: CommitTsExpired
    txn_not_found: TxnNotFound
    commit_ts_too_large: CommitTsTooLarge
    assertion_failed: AssertionFailed
    primary_mismatch: PrimaryMismatch
    txn_lock_not_found: TxnLockNotFound
    def __init__(self, locked: _Optional[_Union[LockInfo, _Mapping]] = ..., retryable: _Optional[str] = ..., abort: _Optional[str] = ..., conflict: _Optional[_Union[WriteConflict, _Mapping]] = ..., already_exist: _Optional[_Union[AlreadyExist, _Mapping]] = ..., deadlock: _Optional[_Union[Deadlock, _Mapping]] = ..., commit_ts_expired: _Optional[_Union[CommitTsExpired, _Mapping]] = ..., txn_not_found: _Optional[_Union[TxnNotFound, _Mapping]] = ..., commit_ts_too_large: _Optional[_Union[CommitTsTooLarge, _Mapping]] = ..., assertion_failed: _Optional[_Union[AssertionFailed, _Mapping]] = ..., primary_mismatch: _Optional[_Union[PrimaryMismatch, _Mapping]] = ..., txn_lock_not_found: _Optional[_Union[TxnLockNotFound, _Mapping]] = ...) -> None: ...

class KvPair(_message.Message):
    __slots__ = ("error", "key", "value", "commit_ts")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    COMMIT_TS_FIELD_NUMBER: _ClassVar[int]
    error: KeyError
    key: bytes
    value: bytes
    commit_ts: int
    def __init__(self, error: _Optional[_Union[KeyError, _Mapping]] = ..., key: _Optional[bytes] = ..., value: _Optional[bytes] = ..., commit_ts: _Optional[int] = ...) -> None: ...

class GetRequest(_message.Message):
    __slots__ = ("context", "key", "version", "need_commit_ts")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NEED_COMMIT_TS_FIELD_NUMBER: _ClassVar[int]
    context: Context
    key: bytes
    version: int
    need_commit_ts: bool
    def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ..., key: _Optional[bytes] = ..., version: _Optional[int] = ..., need_commit_ts: _Optional[bool] = ...) -> None: ...

class GetResponse(_message.Message):
    __slots__ = ("region_error", "error", "value", "not_found", "commit_ts")
    REGION_ERROR_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    NOT_FOUND_FIELD_NUMBER: _ClassVar[int]
    COMMIT_TS_FIELD_NUMBER: _ClassVar[int]
    region_error: _errorpb_pb2.Error
    error: KeyError
    value: bytes
    not_found: bool
    commit_ts: int
    def __init__(self, region_error: _Optional[_Union[_errorpb_pb2.Error, _Mapping]] = ..., error: _Optional[_Union[KeyError, _Mapping]] = ..., value: _Optional[bytes] = ..., not_found: _Optional[bool] = ..., commit_ts: _Optional[int] = ...) -> None: ...

class ScanRequest(_message.Message):
    __slots__ = ("context", "start_key", "limit", "version", "key_only", "reverse", "end_key", "sample_step")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    START_KEY_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    KEY_ONLY_FIELD_NUMBER: _ClassVar[int]
    REVERSE_FIELD_NUMBER: _ClassVar[int]
    END_KEY_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_STEP_FIELD_NUMBER: _ClassVar[int]
    context: Context
    start_key: bytes
    limit: int
    version: int
    key_only: bool
    reverse: bool
    end_key: bytes
    sample_step: int
    def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ..., start_key: _Optional[bytes] = ..., limit: _Optional[int] = ..., version: _Optional[int] = ..., key_only: _Optional[bool] = ..., reverse: _Optional[bool] = ..., end_key: _Optional[bytes] = ..., sample_step: _Optional[int] = ...) -> None: ...

class ScanResponse(_message.Message):
    __slots__ = ("region_error", "pairs", "error")
    REGION_ERROR_FIELD_NUMBER: _ClassVar[int]
    PAIRS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    region_error: _errorpb_pb2.Error
    pairs: _containers.RepeatedCompositeFieldContainer[KvPair]
    error: KeyError
    def __init__(self, region_error: _Optional[_Union[_errorpb_pb2.Error, _Mapping]] = ..., pairs: _Optional[_Iterable[_Union[KvPair, _Mapping]]] = ..., error: _Optional[_Union[KeyError, _Mapping]] = ...) -> None: ...

class BatchGetRequest(_message.Message):
    __slots__ = ("context", "keys", "version", "need_commit_ts")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NEED_COMMIT_TS_FIELD_NUMBER: _ClassVar[int]
    context: Context
    keys: _containers.RepeatedScalarFieldContainer[bytes]
    version: int
    need_commit_ts: bool
    def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ..., keys: _Optional[_Iterable[bytes]] = ..., version: _Optional[int] = ..., need_commit_ts: _Optional[bool] = ...) -> None: ...

class BatchGetResponse(_message.Message):
    __slots__ = ("region_error", "pairs", "error")
    REGION_ERROR_FIELD_NUMBER: _ClassVar[int]
    PAIRS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    region_error: _errorpb_pb2.Error
    pairs: _containers.RepeatedCompositeFieldContainer[KvPair]
    error: KeyError
    def __init__(self, region_error: _Optional[_Union[_errorpb_pb2.Error, _Mapping]] = ..., pairs: _Optional[_Iterable[_Union[KvPair, _Mapping]]] = ..., error: _Optional[_Union[KeyError, _Mapping]] = ...) -> None: ...

class PrewriteRequest(_message.Message):
    __slots__ = ("context", "mutations", "primary_lock", "start_version", "lock_ttl", "skip_constraint_check", "pessimistic_actions", "txn_size", "for_update_ts", "min_commit_ts", "use_async_commit", "secondaries", "try_one_pc", "max_commit_ts", "assertion_level", "for_update_ts_constraints")
    class PessimisticAction(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        SKIP_PESSIMISTIC_CHECK: _ClassVar[PrewriteRequest.PessimisticAction]
        DO_PESSIMISTIC_CHECK: _ClassVar[PrewriteRequest.PessimisticAction]
        DO_CONSTRAINT_CHECK: _ClassVar[PrewriteRequest.PessimisticAction]
    SKIP_PESSIMISTIC_CHECK: PrewriteRequest.PessimisticAction
    DO_PESSIMISTIC_CHECK: PrewriteRequest.PessimisticAction
    DO_CONSTRAINT_CHECK: PrewriteRequest.PessimisticAction
    class ForUpdateTSConstraint(_message.Message):
        __slots__ = ("index", "expected_for_update_ts")
        INDEX_FIELD_NUMBER: _ClassVar[int]
        EXPECTED_FOR_UPDATE_TS_FIELD_NUMBER: _ClassVar[int]
        index: int
        expected_for_update_ts: int
        def __init__(self, index: _Optional[int] = ..., expected_for_update_ts: _Optional[int] = ...) -> None: ...
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    MUTATIONS_FIELD_NUMBER: _ClassVar[int]
    PRIMARY_LOCK_FIELD_NUMBER: _ClassVar[int]
    START_VERSION_FIELD_NUMBER: _ClassVar[int]
    LOCK_TTL_FIELD_NUMBER: _ClassVar[int]
    SKIP_CONSTRAINT_CHECK_FIELD_NUMBER: _ClassVar[int]
    PESSIMISTIC_ACTIONS_FIELD_NUMBER: _ClassVar[int]
    TXN_SIZE_FIELD_NUMBER: _ClassVar[int]
    FOR_UPDATE_TS_FIELD_NUMBER: _ClassVar[int]
    MIN_COMMIT_TS_FIELD_NUMBER: _ClassVar[int]
    USE_ASYNC_COMMIT_FIELD_NUMBER: _ClassVar[int]
    SECONDARIES_FIELD_NUMBER: _ClassVar[int]
    TRY_ONE_PC_FIELD_NUMBER: _ClassVar[int]
    MAX_COMMIT_TS_FIELD_NUMBER: _ClassVar[int]
    ASSERTION_LEVEL_FIELD_NUMBER: _ClassVar[int]
    FOR_UPDATE_TS_CONSTRAINTS_FIELD_NUMBER: _ClassVar[int]
    context: Context
    mutations: _containers.RepeatedCompositeFieldContainer[Mutation]
    primary_lock: bytes
    start_version: int
    lock_ttl: int
    skip_constraint_check: bool
    pessimistic_actions: _containers.RepeatedScalarFieldContainer[PrewriteRequest.PessimisticAction]
    txn_size: int
    for_update_ts: int
    min_commit_ts: int
    use_async_commit: bool
    secondaries: _containers.RepeatedScalarFieldContainer[bytes]
    try_one_pc: bool
    max_commit_ts: int
    assertion_level: AssertionLevel
    for_update_ts_constraints: _containers.RepeatedCompositeFieldContainer[PrewriteRequest.ForUpdateTSConstraint]
    def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ..., mutations: _Optional[_Iterable[_Union[Mutation, _Mapping]]] = ..., primary_lock: _Optional[bytes] = ..., start_version: _Optional[int] = ..., lock_ttl: _Optional[int] = ..., skip_constraint_check: _Optional[bool] = ..., pessimistic_actions: _Optional[_Iterable[_Union[PrewriteRequest.PessimisticAction, str]]] = ..., txn_size: _Optional[int] = ..., for_update_ts: _Optional[int] = ..., min_commit_ts: _Optional[int] = ..., use_async_commit: _Optional[bool] = ..., secondaries: _Optional[_Iterable[bytes]] = ..., try_one_pc: _Optional[bool] = ..., max_commit_ts: _Optional[int] = ..., assertion_level: _Optional[_Union[AssertionLevel, str]] = ..., for_update_ts_constraints: _Optional[_Iterable[_Union[PrewriteRequest.ForUpdateTSConstraint, _Mapping]]] = ...) -> None: ...

class PrewriteResponse(_message.Message):
    __slots__ = ("region_error", "errors", "min_commit_ts", "one_pc_commit_ts")
    REGION_ERROR_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    MIN_COMMIT_TS_FIELD_NUMBER: _ClassVar[int]
    ONE_PC_COMMIT_TS_FIELD_NUMBER: _ClassVar[int]
    region_error: _errorpb_pb2.Error
    errors: _containers.RepeatedCompositeFieldContainer[KeyError]
    min_commit_ts: int
    one_pc_commit_ts: int
    def __init__(self, region_error: _Optional[_Union[_errorpb_pb2.Error, _Mapping]] = ..., errors: _Optional[_Iterable[_Union[KeyError, _Mapping]]] = ..., min_commit_ts: _Optional[int] = ..., one_pc_commit_ts: _Optional[int] = ...) -> None: ...

class TxnHeartBeatRequest(_message.Message):
    __slots__ = ("context", "primary_lock", "start_version", "advise_lock_ttl", "min_commit_ts")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    PRIMARY_LOCK_FIELD_NUMBER: _ClassVar[int]
    START_VERSION_FIELD_NUMBER: _ClassVar[int]
    ADVISE_LOCK_TTL_FIELD_NUMBER: _ClassVar[int]
    MIN_COMMIT_TS_FIELD_NUMBER: _ClassVar[int]
    context: Context
    primary_lock: bytes
    start_version: int
    advise_lock_ttl: int
    min_commit_ts: int
    def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ..., primary_lock: _Optional[bytes] = ..., start_version: _Optional[int] = ..., advise_lock_ttl: _Optional[int] = ..., min_commit_ts: _Optional[int] = ...) -> None: ...

class TxnHeartBeatResponse(_message.Message):
    __slots__ = ("region_error", "error", "lock_ttl")
    REGION_ERROR_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    LOCK_TTL_FIELD_NUMBER: _ClassVar[int]
    region_error: _errorpb_pb2.Error
    error: KeyError
    lock_ttl: int
    def __init__(self, region_error: _Optional[_Union[_errorpb_pb2.Error, _Mapping]] = ..., error: _Optional[_Union[KeyError, _Mapping]] = ..., lock_ttl: _Optional[int] = ...) -> None: ...

class PessimisticLockRequest(_message.Message):
    __slots__ = ("context", "mutations", "primary_lock", "start_version", "lock_ttl", "for_update_ts", "is_first_lock", "wait_timeout", "return_values", "min_commit_ts", "check_existence", "lock_only_if_exists", "wake_up_mode")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    MUTATIONS_FIELD_NUMBER: _ClassVar[int]
    PRIMARY_LOCK_FIELD_NUMBER: _ClassVar[int]
    START_VERSION_FIELD_NUMBER: _ClassVar[int]
    LOCK_TTL_FIELD_NUMBER: _ClassVar[int]
    FOR_UPDATE_TS_FIELD_NUMBER: _ClassVar[int]
    IS_FIRST_LOCK_FIELD_NUMBER: _ClassVar[int]
    WAIT_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    RETURN_VALUES_FIELD_NUMBER: _ClassVar[int]
    MIN_COMMIT_TS_FIELD_NUMBER: _ClassVar[int]
    CHECK_EXISTENCE_FIELD_NUMBER: _ClassVar[int]
    LOCK_ONLY_IF_EXISTS_FIELD_NUMBER: _ClassVar[int]
    WAKE_UP_MODE_FIELD_NUMBER: _ClassVar[int]
    context: Context
    mutations: _containers.RepeatedCompositeFieldContainer[Mutation]
    primary_lock: bytes
    start_version: int
    lock_ttl: int
    for_update_ts: int
    is_first_lock: bool
    wait_timeout: int
    return_values: bool
    min_commit_ts: int
    check_existence: bool
    lock_only_if_exists: bool
    wake_up_mode: PessimisticLockWakeUpMode
    def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ..., mutations: _Optional[_Iterable[_Union[Mutation, _Mapping]]] = ..., primary_lock: _Optional[bytes] = ..., start_version: _Optional[int] = ..., lock_ttl: _Optional[int] = ..., for_update_ts: _Optional[int] = ..., is_first_lock: _Optional[bool] = ..., wait_timeout: _Optional[int] = ..., return_values: _Optional[bool] = ..., min_commit_ts: _Optional[int] = ..., check_existence: _Optional[bool] = ..., lock_only_if_exists: _Optional[bool] = ..., wake_up_mode: _Optional[_Union[PessimisticLockWakeUpMode, str]] = ...) -> None: ...

class PessimisticLockKeyResult(_message.Message):
    __slots__ = ("type", "value", "existence", "locked_with_conflict_ts")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    EXISTENCE_FIELD_NUMBER: _ClassVar[int]
    LOCKED_WITH_CONFLICT_TS_FIELD_NUMBER: _ClassVar[int]
    type: PessimisticLockKeyResultType
    value: bytes
    existence: bool
    locked_with_conflict_ts: int
    def __init__(self, type: _Optional[_Union[PessimisticLockKeyResultType, str]] = ..., value: _Optional[bytes] = ..., existence: _Optional[bool] = ..., locked_with_conflict_ts: _Optional[int] = ...) -> None: ...

class PessimisticLockResponse(_message.Message):
    __slots__ = ("region_error", "errors", "values", "not_founds", "results")
    REGION_ERROR_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    NOT_FOUNDS_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    region_error: _errorpb_pb2.Error
    errors: _containers.RepeatedCompositeFieldContainer[KeyError]
    values: _containers.RepeatedScalarFieldContainer[bytes]
    not_founds: _containers.RepeatedScalarFieldContainer[bool]
    results: _containers.RepeatedCompositeFieldContainer[PessimisticLockKeyResult]
    def __init__(self, region_error: _Optional[_Union[_errorpb_pb2.Error, _Mapping]] = ..., errors: _Optional[_Iterable[_Union[KeyError, _Mapping]]] = ..., values: _Optional[_Iterable[bytes]] = ..., not_founds: _Optional[_Iterable[bool]] = ..., results: _Optional[_Iterable[_Union[PessimisticLockKeyResult, _Mapping]]] = ...) -> None: ...

class PessimisticRollbackRequest(_message.Message):
    __slots__ = ("context", "start_version", "for_update_ts", "keys")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    START_VERSION_FIELD_NUMBER: _ClassVar[int]
    FOR_UPDATE_TS_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    context: Context
    start_version: int
    for_update_ts: int
    keys: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ..., start_version: _Optional[int] = ..., for_update_ts: _Optional[int] = ..., keys: _Optional[_Iterable[bytes]] = ...) -> None: ...

class PessimisticRollbackResponse(_message.Message):
    __slots__ = ("region_error", "errors")
    REGION_ERROR_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    region_error: _errorpb_pb2.Error
    errors: _containers.RepeatedCompositeFieldContainer[KeyError]
    def __init__(self, region_error: _Optional[_Union[_errorpb_pb2.Error, _Mapping]] = ..., errors: _Optional[_Iterable[_Union[KeyError, _Mapping]]] = ...) -> None: ...

class CommitRequest(_message.Message):
    __slots__ = ("context", "start_version", "keys", "commit_version", "commit_role", "primary_key", "use_async_commit")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    START_VERSION_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    COMMIT_VERSION_FIELD_NUMBER: _ClassVar[int]
    COMMIT_ROLE_FIELD_NUMBER: _ClassVar[int]
    PRIMARY_KEY_FIELD_NUMBER: _ClassVar[int]
    USE_ASYNC_COMMIT_FIELD_NUMBER: _ClassVar[int]
    context: Context
    start_version: int
    keys: _containers.RepeatedScalarFieldContainer[bytes]
    commit_version: int
    commit_role: CommitRole
    primary_key: bytes
    use_async_commit: bool
    def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ..., start_version: _Optional[int] = ..., keys: _Optional[_Iterable[bytes]] = ..., commit_version: _Optional[int] = ..., commit_role: _Optional[_Union[CommitRole, str]] = ..., primary_key: _Optional[bytes] = ..., use_async_commit: _Optional[bool] = ...) -> None: ...

class CommitResponse(_message.Message):
    __slots__ = ("region_error", "error", "commit_version")
    REGION_ERROR_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    COMMIT_VERSION_FIELD_NUMBER: _ClassVar[int]
    region_error: _errorpb_pb2.Error
    error: KeyError
    commit_version: int
    def __init__(self, region_error: _Optional[_Union[_errorpb_pb2.Error, _Mapping]] = ..., error: _Optional[_Union[KeyError, _Mapping]] = ..., commit_version: _Optional[int] = ...) -> None: ...

class BatchRollbackRequest(_message.Message):
    __slots__ = ("context", "start_version", "keys")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    START_VERSION_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    context: Context
    start_version: int
    keys: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ..., start_version: _Optional[int] = ..., keys: _Optional[_Iterable[bytes]] = ...) -> None: ...

class BatchRollbackResponse(_message.Message):
    __slots__ = ("region_error", "error")
    REGION_ERROR_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    region_error: _errorpb_pb2.Error
    error: KeyError
    def __init__(self, region_error: _Optional[_Union[_errorpb_pb2.Error, _Mapping]] = ..., error: _Optional[_Union[KeyError, _Mapping]] = ...) -> None: ...

class CleanupRequest(_message.Message):
    __slots__ = ("context", "key", "start_version", "current_ts")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    START_VERSION_FIELD_NUMBER: _ClassVar[int]
    CURRENT_TS_FIELD_NUMBER: _ClassVar[int]
    context: Context
    key: bytes
    start_version: int
    current_ts: int
    def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ..., key: _Optional[bytes] = ..., start_version: _Optional[int] = ..., current_ts: _Optional[int] = ...) -> None: ...

class CleanupResponse(_message.Message):
    __slots__ = ("region_error", "error", "commit_version")
    REGION_ERROR_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    COMMIT_VERSION_FIELD_NUMBER: _ClassVar[int]
    region_error: _errorpb_pb2.Error
    error: KeyError
    commit_version: int
    def __init__(self, region_error: _Optional[_Union[_errorpb_pb2.Error, _Mapping]] = ..., error: _Optional[_Union[KeyError, _Mapping]] = ..., commit_version: _Optional[int] = ...) -> None: ...

class CheckTxnStatusRequest(_message.Message):
    __slots__ = ("context", "primary_key", "lock_ts", "caller_start_ts", "current_ts", "rollback_if_not_exist", "force_sync_commit", "resolving_pessimistic_lock", "verify_is_primary")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    PRIMARY_KEY_FIELD_NUMBER: _ClassVar[int]
    LOCK_TS_FIELD_NUMBER: _ClassVar[int]
    CALLER_START_TS_FIELD_NUMBER: _ClassVar[int]
    CURRENT_TS_FIELD_NUMBER: _ClassVar[int]
    ROLLBACK_IF_NOT_EXIST_FIELD_NUMBER: _ClassVar[int]
    FORCE_SYNC_COMMIT_FIELD_NUMBER: _ClassVar[int]
    RESOLVING_PESSIMISTIC_LOCK_FIELD_NUMBER: _ClassVar[int]
    VERIFY_IS_PRIMARY_FIELD_NUMBER: _ClassVar[int]
    context: Context
    primary_key: bytes
    lock_ts: int
    caller_start_ts: int
    current_ts: int
    rollback_if_not_exist: bool
    force_sync_commit: bool
    resolving_pessimistic_lock: bool
    verify_is_primary: bool
    def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ..., primary_key: _Optional[bytes] = ..., lock_ts: _Optional[int] = ..., caller_start_ts: _Optional[int] = ..., current_ts: _Optional[int] = ..., rollback_if_not_exist: _Optional[bool] = ..., force_sync_commit: _Optional[bool] = ..., resolving_pessimistic_lock: _Optional[bool] = ..., verify_is_primary: _Optional[bool] = ...) -> None: ...

class CheckTxnStatusResponse(_message.Message):
    __slots__ = ("region_error", "error", "lock_ttl", "commit_version", "action", "lock_info")
    REGION_ERROR_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    LOCK_TTL_FIELD_NUMBER: _ClassVar[int]
    COMMIT_VERSION_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    LOCK_INFO_FIELD_NUMBER: _ClassVar[int]
    region_error: _errorpb_pb2.Error
    error: KeyError
    lock_ttl: int
    commit_version: int
    action: Action
    lock_info: LockInfo
    def __init__(self, region_error: _Optional[_Union[_errorpb_pb2.Error, _Mapping]] = ..., error: _Optional[_Union[KeyError, _Mapping]] = ..., lock_ttl: _Optional[int] = ..., commit_version: _Optional[int] = ..., action: _Optional[_Union[Action, str]] = ..., lock_info: _Optional[_Union[LockInfo, _Mapping]] = ...) -> None: ...

class CheckSecondaryLocksRequest(_message.Message):
    __slots__ = ("context", "keys", "start_version")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    START_VERSION_FIELD_NUMBER: _ClassVar[int]
    context: Context
    keys: _containers.RepeatedScalarFieldContainer[bytes]
    start_version: int
    def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ..., keys: _Optional[_Iterable[bytes]] = ..., start_version: _Optional[int] = ...) -> None: ...

class CheckSecondaryLocksResponse(_message.Message):
    __slots__ = ("region_error", "error", "locks", "commit_ts")
    REGION_ERROR_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    LOCKS_FIELD_NUMBER: _ClassVar[int]
    COMMIT_TS_FIELD_NUMBER: _ClassVar[int]
    region_error: _errorpb_pb2.Error
    error: KeyError
    locks: _containers.RepeatedCompositeFieldContainer[LockInfo]
    commit_ts: int
    def __init__(self, region_error: _Optional[_Union[_errorpb_pb2.Error, _Mapping]] = ..., error: _Optional[_Union[KeyError, _Mapping]] = ..., locks: _Optional[_Iterable[_Union[LockInfo, _Mapping]]] = ..., commit_ts: _Optional[int] = ...) -> None: ...

class ScanLockRequest(_message.Message):
    __slots__ = ("context", "max_version", "start_key", "limit", "end_key")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    MAX_VERSION_FIELD_NUMBER: _ClassVar[int]
    START_KEY_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    END_KEY_FIELD_NUMBER: _ClassVar[int]
    context: Context
    max_version: int
    start_key: bytes
    limit: int
    end_key: bytes
    def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ..., max_version: _Optional[int] = ..., start_key: _Optional[bytes] = ..., limit: _Optional[int] = ..., end_key: _Optional[bytes] = ...) -> None: ...

class ScanLockResponse(_message.Message):
    __slots__ = ("region_error", "error", "locks")
    REGION_ERROR_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    LOCKS_FIELD_NUMBER: _ClassVar[int]
    region_error: _errorpb_pb2.Error
    error: KeyError
    locks: _containers.RepeatedCompositeFieldContainer[LockInfo]
    def __init__(self, region_error: _Optional[_Union[_errorpb_pb2.Error, _Mapping]] = ..., error: _Optional[_Union[KeyError, _Mapping]] = ..., locks: _Optional[_Iterable[_Union[LockInfo, _Mapping]]] = ...) -> None: ...

class TxnInfo(_message.Message):
    __slots__ = ("txn", "status")
    TXN_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    txn: int
    status: int
    def __init__(self, txn: _Optional[int] = ..., status: _Optional[int] = ...) -> None: ...

class ResolveLockRequest(_message.Message):
    __slots__ = ("context", "start_version", "commit_version", "txn_infos", "keys", "is_async")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    START_VERSION_FIELD_NUMBER: _ClassVar[int]
    COMMIT_VERSION_FIELD_NUMBER: _ClassVar[int]
    TXN_INFOS_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    IS_ASYNC_FIELD_NUMBER: _ClassVar[int]
    context: Context
    start_version: int
    commit_version: int
    txn_infos: _containers.RepeatedCompositeFieldContainer[TxnInfo]
    keys: _containers.RepeatedScalarFieldContainer[bytes]
    is_async: bool
    def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ..., start_version: _Optional[int] = ..., commit_version: _Optional[int] = ..., txn_infos: _Optional[_Iterable[_Union[TxnInfo, _Mapping]]] = ..., keys: _Optional[_Iterable[bytes]] = ..., is_async: _Optional[bool] = ...) -> None: ...

class ResolveLockResponse(_message.Message):
    __slots__ = ("region_error", "error")
    REGION_ERROR_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    region_error: _errorpb_pb2.Error
    error: KeyError
    def __init__(self, region_error: _Optional[_Union[_errorpb_pb2.Error, _Mapping]] = ..., error: _Optional[_Union[KeyError, _Mapping]] = ...) -> None: ...

class PrepareFlashbackToVersionRequest(_message.Message):
    __slots__ = ("context", "start_key", "end_key", "start_ts", "version")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    START_KEY_FIELD_NUMBER: _ClassVar[int]
    END_KEY_FIELD_NUMBER: _ClassVar[int]
    START_TS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    context: Context
    start_key: bytes
    end_key: bytes
    start_ts: int
    version: int
    def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ..., start_key: _Optional[bytes] = ..., end_key: _Optional[bytes] = ..., start_ts: _Optional[int] = ..., version: _Optional[int] = ...) -> None: ...

class PrepareFlashbackToVersionResponse(_message.Message):
    __slots__ = ("region_error", "error")
    REGION_ERROR_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    region_error: _errorpb_pb2.Error
    error: str
    def __init__(self, region_error: _Optional[_Union[_errorpb_pb2.Error, _Mapping]] = ..., error: _Optional[str] = ...) -> None: ...

class FlashbackToVersionRequest(_message.Message):
    __slots__ = ("context", "version", "start_key", "end_key", "start_ts", "commit_ts")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    START_KEY_FIELD_NUMBER: _ClassVar[int]
    END_KEY_FIELD_NUMBER: _ClassVar[int]
    START_TS_FIELD_NUMBER: _ClassVar[int]
    COMMIT_TS_FIELD_NUMBER: _ClassVar[int]
    context: Context
    version: int
    start_key: bytes
    end_key: bytes
    start_ts: int
    commit_ts: int
    def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ..., version: _Optional[int] = ..., start_key: _Optional[bytes] = ..., end_key: _Optional[bytes] = ..., start_ts: _Optional[int] = ..., commit_ts: _Optional[int] = ...) -> None: ...

class FlashbackToVersionResponse(_message.Message):
    __slots__ = ("region_error", "error")
    REGION_ERROR_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    region_error: _errorpb_pb2.Error
    error: str
    def __init__(self, region_error: _Optional[_Union[_errorpb_pb2.Error, _Mapping]] = ..., error: _Optional[str] = ...) -> None: ...

class StoreSafeTSRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StoreSafeTSResponse(_message.Message):
    __slots__ = ("safe_ts",)
    SAFE_TS_FIELD_NUMBER: _ClassVar[int]
    safe_ts: int
    def __init__(self, safe_ts: _Optional[int] = ...) -> None: ...

class FlushRequest(_message.Message):
    __slots__ = ("context", "mutations", "primary_key", "start_ts", "min_commit_ts", "generation", "lock_ttl", "assertion_level")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    MUTATIONS_FIELD_NUMBER: _ClassVar[int]
    PRIMARY_KEY_FIELD_NUMBER: _ClassVar[int]
    START_TS_FIELD_NUMBER: _ClassVar[int]
    MIN_COMMIT_TS_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    LOCK_TTL_FIELD_NUMBER: _ClassVar[int]
    ASSERTION_LEVEL_FIELD_NUMBER: _ClassVar[int]
    context: Context
    mutations: _containers.RepeatedCompositeFieldContainer[Mutation]
    primary_key: bytes
    start_ts: int
    min_commit_ts: int
    generation: int
    lock_ttl: int
    assertion_level: AssertionLevel
    def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ..., mutations: _Optional[_Iterable[_Union[Mutation, _Mapping]]] = ..., primary_key: _Optional[bytes] = ..., start_ts: _Optional[int] = ..., min_commit_ts: _Optional[int] = ..., generation: _Optional[int] = ..., lock_ttl: _Optional[int] = ..., assertion_level: _Optional[_Union[AssertionLevel, str]] = ...) -> None: ...

class FlushResponse(_message.Message):
    __slots__ = ("region_error", "errors")
    REGION_ERROR_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    region_error: _errorpb_pb2.Error
    errors: _containers.RepeatedCompositeFieldContainer[KeyError]
    def __init__(self, region_error: _Optional[_Union[_errorpb_pb2.Error, _Mapping]] = ..., errors: _Optional[_Iterable[_Union[KeyError, _Mapping]]] = ...) -> None: ...

class BufferBatchGetRequest(_message.Message):
    __slots__ = ("context", "keys", "version")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    context: Context
    keys: _containers.RepeatedScalarFieldContainer[bytes]
    version: int
    def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ..., keys: _Optional[_Iterable[bytes]] = ..., version: _Optional[int] = ...) -> None: ...

class BufferBatchGetResponse(_message.Message):
    __slots__ = ("region_error", "error", "pairs")
    REGION_ERROR_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    PAIRS_FIELD_NUMBER: _ClassVar[int]
    region_error: _errorpb_pb2.Error
    error: KeyError
    pairs: _containers.RepeatedCompositeFieldContainer[KvPair]
    def __init__(self, region_error: _Optional[_Union[_errorpb_pb2.Error, _Mapping]] = ..., error: _Optional[_Union[KeyError, _Mapping]] = ..., pairs: _Optional[_Iterable[_Union[KvPair, _Mapping]]] = ...) -> None: ...

class DeleteRangeRequest(_message.Message):
    __slots__ = ("context", "start_key", "end_key", "notify_only")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    START_KEY_FIELD_NUMBER: _ClassVar[int]
    END_KEY_FIELD_NUMBER: _ClassVar[int]
    NOTIFY_ONLY_FIELD_NUMBER: _ClassVar[int]
    context: Context
    start_key: bytes
    end_key: bytes
    notify_only: bool
    def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ..., start_key: _Optional[bytes] = ..., end_key: _Optional[bytes] = ..., notify_only: _Optional[bool] = ...) -> None: ...

class DeleteRangeResponse(_message.Message):
    __slots__ = ("region_error", "error")
    REGION_ERROR_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    region_error: _errorpb_pb2.Error
    error: str
    def __init__(self, region_error: _Optional[_Union[_errorpb_pb2.Error, _Mapping]] = ..., error: _Optional[str] = ...) -> None: ...

class UnsafeDestroyRangeRequest(_message.Message):
    __slots__ = ("context", "start_key", "end_key")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    START_KEY_FIELD_NUMBER: _ClassVar[int]
    END_KEY_FIELD_NUMBER: _ClassVar[int]
    context: Context
    start_key: bytes
    end_key: bytes
    def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ..., start_key: _Optional[bytes] = ..., end_key: _Optional[bytes] = ...) -> None: ...

class UnsafeDestroyRangeResponse(_message.Message):
    __slots__ = ("region_error", "error")
    REGION_ERROR_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    region_error: _errorpb_pb2.Error
    error: str
    def __init__(self, region_error: _Optional[_Union[_errorpb_pb2.Error, _Mapping]] = ..., error: _Optional[str] = ...) -> None: ...

class MvccLock(_message.Message):
    __slots__ = ("type", "start_ts", "primary", "short_value", "ttl", "for_update_ts", "txn_size", "use_async_commit", "secondaries", "rollback_ts", "last_change_ts", "versions_to_last_change")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    START_TS_FIELD_NUMBER: _ClassVar[int]
    PRIMARY_FIELD_NUMBER: _ClassVar[int]
    SHORT_VALUE_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    FOR_UPDATE_TS_FIELD_NUMBER: _ClassVar[int]
    TXN_SIZE_FIELD_NUMBER: _ClassVar[int]
    USE_ASYNC_COMMIT_FIELD_NUMBER: _ClassVar[int]
    SECONDARIES_FIELD_NUMBER: _ClassVar[int]
    ROLLBACK_TS_FIELD_NUMBER: _ClassVar[int]
    LAST_CHANGE_TS_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_TO_LAST_CHANGE_FIELD_NUMBER: _ClassVar[int]
    type: Op
    start_ts: int
    primary: bytes
    short_value: bytes
    ttl: int
    for_update_ts: int
    txn_size: int
    use_async_commit: bool
    secondaries: _containers.RepeatedScalarFieldContainer[bytes]
    rollback_ts: _containers.RepeatedScalarFieldContainer[int]
    last_change_ts: int
    versions_to_last_change: int
    def __init__(self, type: _Optional[_Union[Op, str]] = ..., start_ts: _Optional[int] = ..., primary: _Optional[bytes] = ..., short_value: _Optional[bytes] = ..., ttl: _Optional[int] = ..., for_update_ts: _Optional[int] = ..., txn_size: _Optional[int] = ..., use_async_commit: _Optional[bool] = ..., secondaries: _Optional[_Iterable[bytes]] = ..., rollback_ts: _Optional[_Iterable[int]] = ..., last_change_ts: _Optional[int] = ..., versions_to_last_change: _Optional[int] = ...) -> None: ...

class MvccWrite(_message.Message):
    __slots__ = ("type", "start_ts", "commit_ts", "short_value", "has_overlapped_rollback", "has_gc_fence", "gc_fence", "last_change_ts", "versions_to_last_change")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    START_TS_FIELD_NUMBER: _ClassVar[int]
    COMMIT_TS_FIELD_NUMBER: _ClassVar[int]
    SHORT_VALUE_FIELD_NUMBER: _ClassVar[int]
    HAS_OVERLAPPED_ROLLBACK_FIELD_NUMBER: _ClassVar[int]
    HAS_GC_FENCE_FIELD_NUMBER: _ClassVar[int]
    GC_FENCE_FIELD_NUMBER: _ClassVar[int]
    LAST_CHANGE_TS_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_TO_LAST_CHANGE_FIELD_NUMBER: _ClassVar[int]
    type: Op
    start_ts: int
    commit_ts: int
    short_value: bytes
    has_overlapped_rollback: bool
    has_gc_fence: bool
    gc_fence: int
    last_change_ts: int
    versions_to_last_change: int
    def __init__(self, type: _Optional[_Union[Op, str]] = ..., start_ts: _Optional[int] = ..., commit_ts: _Optional[int] = ..., short_value: _Optional[bytes] = ..., has_overlapped_rollback: _Optional[bool] = ..., has_gc_fence: _Optional[bool] = ..., gc_fence: _Optional[int] = ..., last_change_ts: _Optional[int] = ..., versions_to_last_change: _Optional[int] = ...) -> None: ...

class MvccValue(_message.Message):
    __slots__ = ("start_ts", "value")
    START_TS_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    start_ts: int
    value: bytes
    def __init__(self, start_ts: _Optional[int] = ..., value: _Optional[bytes] = ...) -> None: ...

class MvccInfo(_message.Message):
    __slots__ = ("lock", "writes", "values")
    LOCK_FIELD_NUMBER: _ClassVar[int]
    WRITES_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    lock: MvccLock
    writes: _containers.RepeatedCompositeFieldContainer[MvccWrite]
    values: _containers.RepeatedCompositeFieldContainer[MvccValue]
    def __init__(self, lock: _Optional[_Union[MvccLock, _Mapping]] = ..., writes: _Optional[_Iterable[_Union[MvccWrite, _Mapping]]] = ..., values: _Optional[_Iterable[_Union[MvccValue, _Mapping]]] = ...) -> None: ...

class MvccGetByKeyRequest(_message.Message):
    __slots__ = ("context", "key")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    context: Context
    key: bytes
    def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ..., key: _Optional[bytes] = ...) -> None: ...

class MvccGetByKeyResponse(_message.Message):
    __slots__ = ("region_error", "error", "info")
    REGION_ERROR_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    INFO_FIELD_NUMBER: _ClassVar[int]
    region_error: _errorpb_pb2.Error
    error: str
    info: MvccInfo
    def __init__(self, region_error: _Optional[_Union[_errorpb_pb2.Error, _Mapping]] = ..., error: _Optional[str] = ..., info: _Optional[_Union[MvccInfo, _Mapping]] = ...) -> None: ...

class GetLockWaitInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetLockWaitInfoResponse(_message.Message):
    __slots__ = ("region_error", "error", "entries")
    REGION_ERROR_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    region_error: _errorpb_pb2.Error
    error: str
    entries: _containers.RepeatedCompositeFieldContainer[WaitForEntry]
    def __init__(self, region_error: _Optional[_Union[_errorpb_pb2.Error, _Mapping]] = ..., error: _Optional[str] = ..., entries: _Optional[_Iterable[_Union[WaitForEntry, _Mapping]]] = ...) -> None: ...

class RawGetRequest(_message.Message):
    __slots__ = ("context", "key", "cf")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    CF_FIELD_NUMBER: _ClassVar[int]
    context: Context
    key: bytes
    cf: str
    def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ..., key: _Optional[bytes] = ..., cf: _Optional[str] = ...) -> None: ...

class RawGetResponse(_message.Message):
    __slots__ = ("region_error", "error", "value", "not_found")
    REGION_ERROR_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    NOT_FOUND_FIELD_NUMBER: _ClassVar[int]
    region_error: _errorpb_pb2.Error
    error: str
    value: bytes
    not_found: bool
    def __init__(self, region_error: _Optional[_Union[_errorpb_pb2.Error, _Mapping]] = ..., error: _Optional[str] = ..., value: _Optional[bytes] = ..., not_found: _Optional[bool] = ...) -> None: ...

class RawBatchGetRequest(_message.Message):
    __slots__ = ("context", "keys", "cf")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    CF_FIELD_NUMBER: _ClassVar[int]
    context: Context
    keys: _containers.RepeatedScalarFieldContainer[bytes]
    cf: str
    def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ..., keys: _Optional[_Iterable[bytes]] = ..., cf: _Optional[str] = ...) -> None: ...

class RawBatchGetResponse(_message.Message):
    __slots__ = ("region_error", "pairs")
    REGION_ERROR_FIELD_NUMBER: _ClassVar[int]
    PAIRS_FIELD_NUMBER: _ClassVar[int]
    region_error: _errorpb_pb2.Error
    pairs: _containers.RepeatedCompositeFieldContainer[KvPair]
    def __init__(self, region_error: _Optional[_Union[_errorpb_pb2.Error, _Mapping]] = ..., pairs: _Optional[_Iterable[_Union[KvPair, _Mapping]]] = ...) -> None: ...

class RawGetKeyTTLRequest(_message.Message):
    __slots__ = ("context", "key", "cf")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    CF_FIELD_NUMBER: _ClassVar[int]
    context: Context
    key: bytes
    cf: str
    def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ..., key: _Optional[bytes] = ..., cf: _Optional[str] = ...) -> None: ...

class RawGetKeyTTLResponse(_message.Message):
    __slots__ = ("region_error", "error", "ttl", "not_found")
    REGION_ERROR_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    NOT_FOUND_FIELD_NUMBER: _ClassVar[int]
    region_error: _errorpb_pb2.Error
    error: str
    ttl: int
    not_found: bool
    def __init__(self, region_error: _Optional[_Union[_errorpb_pb2.Error, _Mapping]] = ..., error: _Optional[str] = ..., ttl: _Optional[int] = ..., not_found: _Optional[bool] = ...) -> None: ...

class RawPutRequest(_message.Message):
    __slots__ = ("context", "key", "value", "cf", "ttl", "for_cas")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    CF_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    FOR_CAS_FIELD_NUMBER: _ClassVar[int]
    context: Context
    key: bytes
    value: bytes
    cf: str
    ttl: int
    for_cas: bool
    def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ..., key: _Optional[bytes] = ..., value: _Optional[bytes] = ..., cf: _Optional[str] = ..., ttl: _Optional[int] = ..., for_cas: _Optional[bool] = ...) -> None: ...

class RawPutResponse(_message.Message):
    __slots__ = ("region_error", "error")
    REGION_ERROR_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    region_error: _errorpb_pb2.Error
    error: str
    def __init__(self, region_error: _Optional[_Union[_errorpb_pb2.Error, _Mapping]] = ..., error: _Optional[str] = ...) -> None: ...

class RawBatchPutRequest(_message.Message):
    __slots__ = ("context", "pairs", "cf", "ttl", "for_cas", "ttls")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    PAIRS_FIELD_NUMBER: _ClassVar[int]
    CF_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    FOR_CAS_FIELD_NUMBER: _ClassVar[int]
    TTLS_FIELD_NUMBER: _ClassVar[int]
    context: Context
    pairs: _containers.RepeatedCompositeFieldContainer[KvPair]
    cf: str
    ttl: int
    for_cas: bool
    ttls: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ..., pairs: _Optional[_Iterable[_Union[KvPair, _Mapping]]] = ..., cf: _Optional[str] = ..., ttl: _Optional[int] = ..., for_cas: _Optional[bool] = ..., ttls: _Optional[_Iterable[int]] = ...) -> None: ...

class RawBatchPutResponse(_message.Message):
    __slots__ = ("region_error", "error")
    REGION_ERROR_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    region_error: _errorpb_pb2.Error
    error: str
    def __init__(self, region_error: _Optional[_Union[_errorpb_pb2.Error, _Mapping]] = ..., error: _Optional[str] = ...) -> None: ...

class RawDeleteRequest(_message.Message):
    __slots__ = ("context", "key", "cf", "for_cas")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    CF_FIELD_NUMBER: _ClassVar[int]
    FOR_CAS_FIELD_NUMBER: _ClassVar[int]
    context: Context
    key: bytes
    cf: str
    for_cas: bool
    def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ..., key: _Optional[bytes] = ..., cf: _Optional[str] = ..., for_cas: _Optional[bool] = ...) -> None: ...

class RawDeleteResponse(_message.Message):
    __slots__ = ("region_error", "error")
    REGION_ERROR_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    region_error: _errorpb_pb2.Error
    error: str
    def __init__(self, region_error: _Optional[_Union[_errorpb_pb2.Error, _Mapping]] = ..., error: _Optional[str] = ...) -> None: ...

class RawBatchDeleteRequest(_message.Message):
    __slots__ = ("context", "keys", "cf", "for_cas")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    CF_FIELD_NUMBER: _ClassVar[int]
    FOR_CAS_FIELD_NUMBER: _ClassVar[int]
    context: Context
    keys: _containers.RepeatedScalarFieldContainer[bytes]
    cf: str
    for_cas: bool
    def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ..., keys: _Optional[_Iterable[bytes]] = ..., cf: _Optional[str] = ..., for_cas: _Optional[bool] = ...) -> None: ...

class RawBatchDeleteResponse(_message.Message):
    __slots__ = ("region_error", "error")
    REGION_ERROR_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    region_error: _errorpb_pb2.Error
    error: str
    def __init__(self, region_error: _Optional[_Union[_errorpb_pb2.Error, _Mapping]] = ..., error: _Optional[str] = ...) -> None: ...

class RawDeleteRangeRequest(_message.Message):
    __slots__ = ("context", "start_key", "end_key", "cf")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    START_KEY_FIELD_NUMBER: _ClassVar[int]
    END_KEY_FIELD_NUMBER: _ClassVar[int]
    CF_FIELD_NUMBER: _ClassVar[int]
    context: Context
    start_key: bytes
    end_key: bytes
    cf: str
    def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ..., start_key: _Optional[bytes] = ..., end_key: _Optional[bytes] = ..., cf: _Optional[str] = ...) -> None: ...

class RawDeleteRangeResponse(_message.Message):
    __slots__ = ("region_error", "error")
    REGION_ERROR_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    region_error: _errorpb_pb2.Error
    error: str
    def __init__(self, region_error: _Optional[_Union[_errorpb_pb2.Error, _Mapping]] = ..., error: _Optional[str] = ...) -> None: ...

class RawScanRequest(_message.Message):
    __slots__ = ("context", "start_key", "limit", "key_only", "cf", "reverse", "end_key")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    START_KEY_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    KEY_ONLY_FIELD_NUMBER: _ClassVar[int]
    CF_FIELD_NUMBER: _ClassVar[int]
    REVERSE_FIELD_NUMBER: _ClassVar[int]
    END_KEY_FIELD_NUMBER: _ClassVar[int]
    context: Context
    start_key: bytes
    limit: int
    key_only: bool
    cf: str
    reverse: bool
    end_key: bytes
    def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ..., start_key: _Optional[bytes] = ..., limit: _Optional[int] = ..., key_only: _Optional[bool] = ..., cf: _Optional[str] = ..., reverse: _Optional[bool] = ..., end_key: _Optional[bytes] = ...) -> None: ...

class RawScanResponse(_message.Message):
    __slots__ = ("region_error", "kvs")
    REGION_ERROR_FIELD_NUMBER: _ClassVar[int]
    KVS_FIELD_NUMBER: _ClassVar[int]
    region_error: _errorpb_pb2.Error
    kvs: _containers.RepeatedCompositeFieldContainer[KvPair]
    def __init__(self, region_error: _Optional[_Union[_errorpb_pb2.Error, _Mapping]] = ..., kvs: _Optional[_Iterable[_Union[KvPair, _Mapping]]] = ...) -> None: ...

class KeyRange(_message.Message):
    __slots__ = ("start_key", "end_key")
    START_KEY_FIELD_NUMBER: _ClassVar[int]
    END_KEY_FIELD_NUMBER: _ClassVar[int]
    start_key: bytes
    end_key: bytes
    def __init__(self, start_key: _Optional[bytes] = ..., end_key: _Optional[bytes] = ...) -> None: ...

class RawBatchScanRequest(_message.Message):
    __slots__ = ("context", "ranges", "each_limit", "key_only", "cf", "reverse")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    EACH_LIMIT_FIELD_NUMBER: _ClassVar[int]
    KEY_ONLY_FIELD_NUMBER: _ClassVar[int]
    CF_FIELD_NUMBER: _ClassVar[int]
    REVERSE_FIELD_NUMBER: _ClassVar[int]
    context: Context
    ranges: _containers.RepeatedCompositeFieldContainer[KeyRange]
    each_limit: int
    key_only: bool
    cf: str
    reverse: bool
    def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ..., ranges: _Optional[_Iterable[_Union[KeyRange, _Mapping]]] = ..., each_limit: _Optional[int] = ..., key_only: _Optional[bool] = ..., cf: _Optional[str] = ..., reverse: _Optional[bool] = ...) -> None: ...

class RawBatchScanResponse(_message.Message):
    __slots__ = ("region_error", "kvs")
    REGION_ERROR_FIELD_NUMBER: _ClassVar[int]
    KVS_FIELD_NUMBER: _ClassVar[int]
    region_error: _errorpb_pb2.Error
    kvs: _containers.RepeatedCompositeFieldContainer[KvPair]
    def __init__(self, region_error: _Optional[_Union[_errorpb_pb2.Error, _Mapping]] = ..., kvs: _Optional[_Iterable[_Union[KvPair, _Mapping]]] = ...) -> None: ...

class RawChecksumRequest(_message.Message):
    __slots__ = ("context", "algorithm", "ranges")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    ALGORITHM_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    context: Context
    algorithm: ChecksumAlgorithm
    ranges: _containers.RepeatedCompositeFieldContainer[KeyRange]
    def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ..., algorithm: _Optional[_Union[ChecksumAlgorithm, str]] = ..., ranges: _Optional[_Iterable[_Union[KeyRange, _Mapping]]] = ...) -> None: ...

class RawChecksumResponse(_message.Message):
    __slots__ = ("region_error", "error", "checksum", "total_kvs", "total_bytes")
    REGION_ERROR_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    TOTAL_KVS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    region_error: _errorpb_pb2.Error
    error: str
    checksum: int
    total_kvs: int
    total_bytes: int
    def __init__(self, region_error: _Optional[_Union[_errorpb_pb2.Error, _Mapping]] = ..., error: _Optional[str] = ..., checksum: _Optional[int] = ..., total_kvs: _Optional[int] = ..., total_bytes: _Optional[int] = ...) -> None: ...

class RawCASRequest(_message.Message):
    __slots__ = ("context", "key", "value", "previous_not_exist", "previous_value", "cf", "ttl", "delete")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_NOT_EXIST_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_VALUE_FIELD_NUMBER: _ClassVar[int]
    CF_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    DELETE_FIELD_NUMBER: _ClassVar[int]
    context: Context
    key: bytes
    value: bytes
    previous_not_exist: bool
    previous_value: bytes
    cf: str
    ttl: int
    delete: bool
    def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ..., key: _Optional[bytes] = ..., value: _Optional[bytes] = ..., previous_not_exist: _Optional[bool] = ..., previous_value: _Optional[bytes] = ..., cf: _Optional[str] = ..., ttl: _Optional[int] = ..., delete: _Optional[bool] = ...) -> None: ...

class RawCASResponse(_message.Message):
    __slots__ = ("region_error", "error", "succeed", "previous_not_exist", "previous_value")
    REGION_ERROR_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    SUCCEED_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_NOT_EXIST_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_VALUE_FIELD_NUMBER: _ClassVar[int]
    region_error: _errorpb_pb2.Error
    error: str
    succeed: bool
    previous_not_exist: bool
    previous_value: bytes
    def __init__(self, region_error: _Optional[_Union[_errorpb_pb2.Error, _Mapping]] = ..., error: _Optional[str] = ..., succeed: _Optional[bool] = ..., previous_not_exist: _Optional[bool] = ..., previous_value: _Optional[bytes] = ...) -> None: ...

class SplitRegionRequest(_message.Message):
    __slots__ = ("context", "split_key", "split_keys", "is_raw_kv")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    SPLIT_KEY_FIELD_NUMBER: _ClassVar[int]
    SPLIT_KEYS_FIELD_NUMBER: _ClassVar[int]
    IS_RAW_KV_FIELD_NUMBER: _ClassVar[int]
    context: Context
    split_key: bytes
    split_keys: _containers.RepeatedScalarFieldContainer[bytes]
    is_raw_kv: bool
    def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ..., split_key: _Optional[bytes] = ..., split_keys: _Optional[_Iterable[bytes]] = ..., is_raw_kv: _Optional[bool] = ...) -> None: ...

class SplitRegionResponse(_message.Message):
    __slots__ = ("region_error", "left", "right", "regions")
    REGION_ERROR_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    RIGHT_FIELD_NUMBER: _ClassVar[int]
    REGIONS_FIELD_NUMBER: _ClassVar[int]
    region_error: _errorpb_pb2.Error
    left: _metapb_pb2.Region
    right: _metapb_pb2.Region
    regions: _containers.RepeatedCompositeFieldContainer[_metapb_pb2.Region]
    def __init__(self, region_error: _Optional[_Union[_errorpb_pb2.Error, _Mapping]] = ..., left: _Optional[_Union[_metapb_pb2.Region, _Mapping]] = ..., right: _Optional[_Union[_metapb_pb2.Region, _Mapping]] = ..., regions: _Optional[_Iterable[_Union[_metapb_pb2.Region, _Mapping]]] = ...) -> None: ...
