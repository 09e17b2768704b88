from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Reason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    UNSPECIFIED: _ClassVar[Reason]
    CORRUPT: _ClassVar[Reason]
    WRONG_CLUSTER: _ClassVar[Reason]
    UNKNOWN_TABLE: _ClassVar[Reason]
    STALE_TERM: _ClassVar[Reason]
    STALE_EPOCH: _ClassVar[Reason]
    DISK_FULL: _ClassVar[Reason]
    VERSION: _ClassVar[Reason]
    HOLE: _ClassVar[Reason]
    DIVERGENCE: _ClassVar[Reason]
    LOOP: _ClassVar[Reason]
    TOO_LARGE: _ClassVar[Reason]
    NOT_READY: _ClassVar[Reason]
    UNKNOWN_SCHEMA: _ClassVar[Reason]
    TABLE_CONFLICT: _ClassVar[Reason]
    ID_CLASH: _ClassVar[Reason]
    NOT_GRANTED: _ClassVar[Reason]
    CLOCK_AHEAD: _ClassVar[Reason]
UNSPECIFIED: Reason
CORRUPT: Reason
WRONG_CLUSTER: Reason
UNKNOWN_TABLE: Reason
STALE_TERM: Reason
STALE_EPOCH: Reason
DISK_FULL: Reason
VERSION: Reason
HOLE: Reason
DIVERGENCE: Reason
LOOP: Reason
TOO_LARGE: Reason
NOT_READY: Reason
UNKNOWN_SCHEMA: Reason
TABLE_CONFLICT: Reason
ID_CLASH: Reason
NOT_GRANTED: Reason
CLOCK_AHEAD: Reason

class Range(_message.Message):
    __slots__ = ("begin", "end")
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    begin: int
    end: int
    def __init__(self, begin: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class ReplicationStatus(_message.Message):
    __slots__ = ("state", "begin", "needed", "finished", "applied", "ranges")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        OPEN: _ClassVar[ReplicationStatus.State]
        CLOSED: _ClassVar[ReplicationStatus.State]
    OPEN: ReplicationStatus.State
    CLOSED: ReplicationStatus.State
    STATE_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    NEEDED_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    state: ReplicationStatus.State
    begin: int
    needed: int
    finished: int
    applied: int
    ranges: _containers.RepeatedCompositeFieldContainer[Range]
    def __init__(self, state: _Optional[_Union[ReplicationStatus.State, str]] = ..., begin: _Optional[int] = ..., needed: _Optional[int] = ..., finished: _Optional[int] = ..., applied: _Optional[int] = ..., ranges: _Optional[_Iterable[_Union[Range, _Mapping]]] = ...) -> None: ...

class FileStatus(_message.Message):
    __slots__ = ("file", "status", "losses")
    FILE_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    LOSSES_FIELD_NUMBER: _ClassVar[int]
    file: str
    status: ReplicationStatus
    losses: int
    def __init__(self, file: _Optional[str] = ..., status: _Optional[_Union[ReplicationStatus, _Mapping]] = ..., losses: _Optional[int] = ...) -> None: ...

class ShipRequest(_message.Message):
    __slots__ = ("open", "data", "schemas", "frames")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    SCHEMAS_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    open: Open
    data: Data
    schemas: Schemas
    frames: bytes
    def __init__(self, open: _Optional[_Union[Open, _Mapping]] = ..., data: _Optional[_Union[Data, _Mapping]] = ..., schemas: _Optional[_Union[Schemas, _Mapping]] = ..., frames: _Optional[bytes] = ...) -> None: ...

class Open(_message.Message):
    __slots__ = ("protocol", "source", "expected", "version", "role_epoch", "routes", "files", "term_history", "generation", "former", "zookeepers", "successions")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ROLE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    ROUTES_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    TERM_HISTORY_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    FORMER_FIELD_NUMBER: _ClassVar[int]
    ZOOKEEPERS_FIELD_NUMBER: _ClassVar[int]
    SUCCESSIONS_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    source: str
    expected: str
    version: str
    role_epoch: int
    routes: _containers.RepeatedCompositeFieldContainer[Route]
    files: _containers.RepeatedCompositeFieldContainer[FileTerm]
    term_history: _containers.RepeatedCompositeFieldContainer[TermNonce]
    generation: int
    former: _containers.RepeatedScalarFieldContainer[str]
    zookeepers: str
    successions: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, protocol: _Optional[int] = ..., source: _Optional[str] = ..., expected: _Optional[str] = ..., version: _Optional[str] = ..., role_epoch: _Optional[int] = ..., routes: _Optional[_Iterable[_Union[Route, _Mapping]]] = ..., files: _Optional[_Iterable[_Union[FileTerm, _Mapping]]] = ..., term_history: _Optional[_Iterable[_Union[TermNonce, _Mapping]]] = ..., generation: _Optional[int] = ..., former: _Optional[_Iterable[str]] = ..., zookeepers: _Optional[str] = ..., successions: _Optional[_Iterable[bytes]] = ...) -> None: ...

class TermNonce(_message.Message):
    __slots__ = ("term", "nonce")
    TERM_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    term: int
    nonce: str
    def __init__(self, term: _Optional[int] = ..., nonce: _Optional[str] = ...) -> None: ...

class FileTerm(_message.Message):
    __slots__ = ("file", "term")
    FILE_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    file: str
    term: int
    def __init__(self, file: _Optional[str] = ..., term: _Optional[int] = ...) -> None: ...

class Route(_message.Message):
    __slots__ = ("table", "group", "remote_table", "generation", "required_from", "schemas", "carried", "phase", "bootstrap_bytes", "closed", "acknowledged", "ended")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    REMOTE_TABLE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    REQUIRED_FROM_FIELD_NUMBER: _ClassVar[int]
    SCHEMAS_FIELD_NUMBER: _ClassVar[int]
    CARRIED_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    BOOTSTRAP_BYTES_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    table: str
    group: str
    remote_table: str
    generation: int
    required_from: _containers.RepeatedCompositeFieldContainer[RequiredFrom]
    schemas: _containers.RepeatedCompositeFieldContainer[Schema]
    carried: _containers.RepeatedCompositeFieldContainer[Carried]
    phase: str
    bootstrap_bytes: int
    closed: bool
    acknowledged: _containers.RepeatedCompositeFieldContainer[Acknowledged]
    ended: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, table: _Optional[str] = ..., group: _Optional[str] = ..., remote_table: _Optional[str] = ..., generation: _Optional[int] = ..., required_from: _Optional[_Iterable[_Union[RequiredFrom, _Mapping]]] = ..., schemas: _Optional[_Iterable[_Union[Schema, _Mapping]]] = ..., carried: _Optional[_Iterable[_Union[Carried, _Mapping]]] = ..., phase: _Optional[str] = ..., bootstrap_bytes: _Optional[int] = ..., closed: _Optional[bool] = ..., acknowledged: _Optional[_Iterable[_Union[Acknowledged, _Mapping]]] = ..., ended: _Optional[_Iterable[str]] = ...) -> None: ...

class Carried(_message.Message):
    __slots__ = ("origin", "path", "silent_since", "awaits_bootstrap")
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    SILENT_SINCE_FIELD_NUMBER: _ClassVar[int]
    AWAITS_BOOTSTRAP_FIELD_NUMBER: _ClassVar[int]
    origin: str
    path: _containers.RepeatedScalarFieldContainer[str]
    silent_since: int
    awaits_bootstrap: bool
    def __init__(self, origin: _Optional[str] = ..., path: _Optional[_Iterable[str]] = ..., silent_since: _Optional[int] = ..., awaits_bootstrap: _Optional[bool] = ...) -> None: ...

class RequiredFrom(_message.Message):
    __slots__ = ("wal", "sequence")
    WAL_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    wal: str
    sequence: int
    def __init__(self, wal: _Optional[str] = ..., sequence: _Optional[int] = ...) -> None: ...

class Acknowledged(_message.Message):
    __slots__ = ("wal", "sequences")
    WAL_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    wal: str
    sequences: _containers.RepeatedCompositeFieldContainer[Range]
    def __init__(self, wal: _Optional[str] = ..., sequences: _Optional[_Iterable[_Union[Range, _Mapping]]] = ...) -> None: ...

class Schema(_message.Message):
    __slots__ = ("table", "group", "hash", "body")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    HASH_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    table: bytes
    group: str
    hash: bytes
    body: bytes
    def __init__(self, table: _Optional[bytes] = ..., group: _Optional[str] = ..., hash: _Optional[bytes] = ..., body: _Optional[bytes] = ...) -> None: ...

class Schemas(_message.Message):
    __slots__ = ("schemas", "tables")
    SCHEMAS_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    schemas: _containers.RepeatedCompositeFieldContainer[Schema]
    tables: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, schemas: _Optional[_Iterable[_Union[Schema, _Mapping]]] = ..., tables: _Optional[_Iterable[str]] = ...) -> None: ...

class Data(_message.Message):
    __slots__ = ("file", "begin", "end", "chunk_begin", "term", "closed_length")
    FILE_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    CHUNK_BEGIN_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    CLOSED_LENGTH_FIELD_NUMBER: _ClassVar[int]
    file: str
    begin: int
    end: int
    chunk_begin: int
    term: int
    closed_length: int
    def __init__(self, file: _Optional[str] = ..., begin: _Optional[int] = ..., end: _Optional[int] = ..., chunk_begin: _Optional[int] = ..., term: _Optional[int] = ..., closed_length: _Optional[int] = ...) -> None: ...

class ShipReply(_message.Message):
    __slots__ = ("opened", "ack", "refusal")
    OPENED_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    opened: Opened
    ack: Ack
    refusal: Refusal
    def __init__(self, opened: _Optional[_Union[Opened, _Mapping]] = ..., ack: _Optional[_Union[Ack, _Mapping]] = ..., refusal: _Optional[_Union[Refusal, _Mapping]] = ...) -> None: ...

class Opened(_message.Message):
    __slots__ = ("cluster", "version", "files", "refused", "lost", "term_history", "newest")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    TERM_HISTORY_FIELD_NUMBER: _ClassVar[int]
    NEWEST_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    version: str
    files: _containers.RepeatedCompositeFieldContainer[FileStatus]
    refused: _containers.RepeatedCompositeFieldContainer[RouteRefusal]
    lost: _containers.RepeatedCompositeFieldContainer[FileStatus]
    term_history: _containers.RepeatedCompositeFieldContainer[TermNonce]
    newest: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, cluster: _Optional[str] = ..., version: _Optional[str] = ..., files: _Optional[_Iterable[_Union[FileStatus, _Mapping]]] = ..., refused: _Optional[_Iterable[_Union[RouteRefusal, _Mapping]]] = ..., lost: _Optional[_Iterable[_Union[FileStatus, _Mapping]]] = ..., term_history: _Optional[_Iterable[_Union[TermNonce, _Mapping]]] = ..., newest: _Optional[_Iterable[str]] = ...) -> None: ...

class RouteRefusal(_message.Message):
    __slots__ = ("table", "group", "refusal")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    table: bytes
    group: str
    refusal: Refusal
    def __init__(self, table: _Optional[bytes] = ..., group: _Optional[str] = ..., refusal: _Optional[_Union[Refusal, _Mapping]] = ...) -> None: ...

class Ack(_message.Message):
    __slots__ = ("file", "ranges")
    FILE_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    file: str
    ranges: _containers.RepeatedCompositeFieldContainer[Range]
    def __init__(self, file: _Optional[str] = ..., ranges: _Optional[_Iterable[_Union[Range, _Mapping]]] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("reason", "what", "remedy", "file", "begin", "end", "expected", "table")
    REASON_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    REMEDY_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    reason: Reason
    what: str
    remedy: str
    file: str
    begin: int
    end: int
    expected: int
    table: bytes
    def __init__(self, reason: _Optional[_Union[Reason, str]] = ..., what: _Optional[str] = ..., remedy: _Optional[str] = ..., file: _Optional[str] = ..., begin: _Optional[int] = ..., end: _Optional[int] = ..., expected: _Optional[int] = ..., table: _Optional[bytes] = ...) -> None: ...

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeReply(_message.Message):
    __slots__ = ("cluster", "version", "protocol", "role", "role_epoch", "peers", "granted", "drilled", "drill_failure")
    class PeersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    ROLE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    GRANTED_FIELD_NUMBER: _ClassVar[int]
    DRILLED_FIELD_NUMBER: _ClassVar[int]
    DRILL_FAILURE_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    version: str
    protocol: int
    role: str
    role_epoch: int
    peers: _containers.ScalarMap[str, str]
    granted: _containers.RepeatedScalarFieldContainer[str]
    drilled: int
    drill_failure: str
    def __init__(self, cluster: _Optional[str] = ..., version: _Optional[str] = ..., protocol: _Optional[int] = ..., role: _Optional[str] = ..., role_epoch: _Optional[int] = ..., peers: _Optional[_Mapping[str, str]] = ..., granted: _Optional[_Iterable[str]] = ..., drilled: _Optional[int] = ..., drill_failure: _Optional[str] = ...) -> None: ...

class GetTableRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class TableReply(_message.Message):
    __slots__ = ("table",)
    TABLE_FIELD_NUMBER: _ClassVar[int]
    table: str
    def __init__(self, table: _Optional[str] = ...) -> None: ...

class ProgressRequest(_message.Message):
    __slots__ = ("files",)
    FILES_FIELD_NUMBER: _ClassVar[int]
    files: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, files: _Optional[_Iterable[str]] = ...) -> None: ...

class ProgressReply(_message.Message):
    __slots__ = ("files",)
    FILES_FIELD_NUMBER: _ClassVar[int]
    files: _containers.RepeatedCompositeFieldContainer[FileStatus]
    def __init__(self, files: _Optional[_Iterable[_Union[FileStatus, _Mapping]]] = ...) -> None: ...

class Sequences(_message.Message):
    __slots__ = ("stream", "last")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    stream: str
    last: int
    def __init__(self, stream: _Optional[str] = ..., last: _Optional[int] = ...) -> None: ...

class ReachedRequest(_message.Message):
    __slots__ = ("streams", "until", "wait_ms")
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    streams: _containers.RepeatedCompositeFieldContainer[Sequences]
    until: str
    wait_ms: int
    def __init__(self, streams: _Optional[_Iterable[_Union[Sequences, _Mapping]]] = ..., until: _Optional[str] = ..., wait_ms: _Optional[int] = ...) -> None: ...

class Reach(_message.Message):
    __slots__ = ("stream", "durable", "applied", "visible", "held_by", "comes", "dropped", "covered")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    DURABLE_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    VISIBLE_FIELD_NUMBER: _ClassVar[int]
    HELD_BY_FIELD_NUMBER: _ClassVar[int]
    COMES_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    COVERED_FIELD_NUMBER: _ClassVar[int]
    stream: str
    durable: bool
    applied: bool
    visible: bool
    held_by: str
    comes: bool
    dropped: bool
    covered: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, stream: _Optional[str] = ..., durable: _Optional[bool] = ..., applied: _Optional[bool] = ..., visible: _Optional[bool] = ..., held_by: _Optional[str] = ..., comes: _Optional[bool] = ..., dropped: _Optional[bool] = ..., covered: _Optional[_Iterable[int]] = ...) -> None: ...

class ReachedReply(_message.Message):
    __slots__ = ("streams",)
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    streams: _containers.RepeatedCompositeFieldContainer[Reach]
    def __init__(self, streams: _Optional[_Iterable[_Union[Reach, _Mapping]]] = ...) -> None: ...

class OpenRouteRequest(_message.Message):
    __slots__ = ("source", "expected", "routes")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    ROUTES_FIELD_NUMBER: _ClassVar[int]
    source: str
    expected: str
    routes: _containers.RepeatedCompositeFieldContainer[Route]
    def __init__(self, source: _Optional[str] = ..., expected: _Optional[str] = ..., routes: _Optional[_Iterable[_Union[Route, _Mapping]]] = ...) -> None: ...

class RouteReply(_message.Message):
    __slots__ = ("refusal",)
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    refusal: Refusal
    def __init__(self, refusal: _Optional[_Union[Refusal, _Mapping]] = ...) -> None: ...

class TakeOverRequest(_message.Message):
    __slots__ = ("source", "expected", "succession", "zookeepers", "cancelled")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    SUCCESSION_FIELD_NUMBER: _ClassVar[int]
    ZOOKEEPERS_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    source: str
    expected: str
    succession: bytes
    zookeepers: str
    cancelled: int
    def __init__(self, source: _Optional[str] = ..., expected: _Optional[str] = ..., succession: _Optional[bytes] = ..., zookeepers: _Optional[str] = ..., cancelled: _Optional[int] = ...) -> None: ...

class SuccessionsRequest(_message.Message):
    __slots__ = ("source", "expected", "lease_ms", "role_epoch")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    ROLE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    source: str
    expected: str
    lease_ms: int
    role_epoch: int
    def __init__(self, source: _Optional[str] = ..., expected: _Optional[str] = ..., lease_ms: _Optional[int] = ..., role_epoch: _Optional[int] = ...) -> None: ...

class SuccessionsReply(_message.Message):
    __slots__ = ("refusal", "successions")
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    SUCCESSIONS_FIELD_NUMBER: _ClassVar[int]
    refusal: Refusal
    successions: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, refusal: _Optional[_Union[Refusal, _Mapping]] = ..., successions: _Optional[_Iterable[bytes]] = ...) -> None: ...

class CompareRequest(_message.Message):
    __slots__ = ("open", "question")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    open: CompareOpen
    question: bytes
    def __init__(self, open: _Optional[_Union[CompareOpen, _Mapping]] = ..., question: _Optional[bytes] = ...) -> None: ...

class CompareOpen(_message.Message):
    __slots__ = ("protocol", "source", "expected", "version")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    source: str
    expected: str
    version: str
    def __init__(self, protocol: _Optional[int] = ..., source: _Optional[str] = ..., expected: _Optional[str] = ..., version: _Optional[str] = ...) -> None: ...

class CompareReply(_message.Message):
    __slots__ = ("refusal", "answer")
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    refusal: Refusal
    answer: bytes
    def __init__(self, refusal: _Optional[_Union[Refusal, _Mapping]] = ..., answer: _Optional[bytes] = ...) -> None: ...

class Question(_message.Message):
    __slots__ = ("tables", "table", "read", "buckets", "keys")
    TABLES_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    READ_FIELD_NUMBER: _ClassVar[int]
    BUCKETS_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    tables: bool
    table: TableQuestion
    read: ReadQuestion
    buckets: bool
    keys: bytes
    def __init__(self, tables: _Optional[bool] = ..., table: _Optional[_Union[TableQuestion, _Mapping]] = ..., read: _Optional[_Union[ReadQuestion, _Mapping]] = ..., buckets: _Optional[bool] = ..., keys: _Optional[bytes] = ...) -> None: ...

class TableQuestion(_message.Message):
    __slots__ = ("table", "name")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    table: bytes
    name: str
    def __init__(self, table: _Optional[bytes] = ..., name: _Optional[str] = ...) -> None: ...

class ReadQuestion(_message.Message):
    __slots__ = ("table", "groups", "as_of")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    AS_OF_FIELD_NUMBER: _ClassVar[int]
    table: str
    groups: _containers.RepeatedScalarFieldContainer[str]
    as_of: int
    def __init__(self, table: _Optional[str] = ..., groups: _Optional[_Iterable[str]] = ..., as_of: _Optional[int] = ...) -> None: ...

class Answer(_message.Message):
    __slots__ = ("refusal", "tables", "table", "digest", "buckets", "rows", "end")
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    BUCKETS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    refusal: Refusal
    tables: TablesAnswer
    table: TableAnswer
    digest: DigestAnswer
    buckets: bytes
    rows: bytes
    end: bool
    def __init__(self, refusal: _Optional[_Union[Refusal, _Mapping]] = ..., tables: _Optional[_Union[TablesAnswer, _Mapping]] = ..., table: _Optional[_Union[TableAnswer, _Mapping]] = ..., digest: _Optional[_Union[DigestAnswer, _Mapping]] = ..., buckets: _Optional[bytes] = ..., rows: _Optional[bytes] = ..., end: _Optional[bool] = ...) -> None: ...

class TablesAnswer(_message.Message):
    __slots__ = ("tables",)
    TABLES_FIELD_NUMBER: _ClassVar[int]
    tables: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, tables: _Optional[_Iterable[bytes]] = ...) -> None: ...

class TableAnswer(_message.Message):
    __slots__ = ("table", "groups", "replicated", "earliest", "taken", "held")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    REPLICATED_FIELD_NUMBER: _ClassVar[int]
    EARLIEST_FIELD_NUMBER: _ClassVar[int]
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    table: str
    groups: _containers.RepeatedScalarFieldContainer[str]
    replicated: int
    earliest: int
    taken: bool
    held: str
    def __init__(self, table: _Optional[str] = ..., groups: _Optional[_Iterable[str]] = ..., replicated: _Optional[int] = ..., earliest: _Optional[int] = ..., taken: _Optional[bool] = ..., held: _Optional[str] = ...) -> None: ...

class DigestAnswer(_message.Message):
    __slots__ = ("rows", "content")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    rows: int
    content: bytes
    def __init__(self, rows: _Optional[int] = ..., content: _Optional[bytes] = ...) -> None: ...

class ReadRequest(_message.Message):
    __slots__ = ("protocol", "cluster", "file", "ranges", "heads")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    HEADS_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    cluster: str
    file: str
    ranges: _containers.RepeatedCompositeFieldContainer[Range]
    heads: bool
    def __init__(self, protocol: _Optional[int] = ..., cluster: _Optional[str] = ..., file: _Optional[str] = ..., ranges: _Optional[_Iterable[_Union[Range, _Mapping]]] = ..., heads: _Optional[bool] = ...) -> None: ...

class ReadReply(_message.Message):
    __slots__ = ("refusal", "content", "crc32c", "end")
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    CRC32C_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    refusal: Refusal
    content: bytes
    crc32c: int
    end: bool
    def __init__(self, refusal: _Optional[_Union[Refusal, _Mapping]] = ..., content: _Optional[bytes] = ..., crc32c: _Optional[int] = ..., end: _Optional[bool] = ...) -> None: ...

class FilesRequest(_message.Message):
    __slots__ = ("protocol", "folder", "call", "paths", "begin", "end", "size", "finish", "permission", "timestamp_ns", "content", "crc32c", "files")
    class Call(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        SCAN: _ClassVar[FilesRequest.Call]
        STATUS: _ClassVar[FilesRequest.Call]
        READ: _ClassVar[FilesRequest.Call]
        REREAD: _ClassVar[FilesRequest.Call]
        WRITE: _ClassVar[FilesRequest.Call]
        MAKE_FOLDER: _ClassVar[FilesRequest.Call]
        GIVE_FOLDER: _ClassVar[FilesRequest.Call]
        MOVE: _ClassVar[FilesRequest.Call]
        KEEP: _ClassVar[FilesRequest.Call]
        REMOVE_FILES: _ClassVar[FilesRequest.Call]
        REMOVE_FOLDER: _ClassVar[FilesRequest.Call]
        SYNC: _ClassVar[FilesRequest.Call]
        SYNC_ALL: _ClassVar[FilesRequest.Call]
        WRITE_FILES: _ClassVar[FilesRequest.Call]
        READ_FILES: _ClassVar[FilesRequest.Call]
    SCAN: FilesRequest.Call
    STATUS: FilesRequest.Call
    READ: FilesRequest.Call
    REREAD: FilesRequest.Call
    WRITE: FilesRequest.Call
    MAKE_FOLDER: FilesRequest.Call
    GIVE_FOLDER: FilesRequest.Call
    MOVE: FilesRequest.Call
    KEEP: FilesRequest.Call
    REMOVE_FILES: FilesRequest.Call
    REMOVE_FOLDER: FilesRequest.Call
    SYNC: FilesRequest.Call
    SYNC_ALL: FilesRequest.Call
    WRITE_FILES: FilesRequest.Call
    READ_FILES: FilesRequest.Call
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    PATHS_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    PERMISSION_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_NS_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    CRC32C_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    folder: str
    call: FilesRequest.Call
    paths: _containers.RepeatedScalarFieldContainer[str]
    begin: int
    end: int
    size: int
    finish: bool
    permission: int
    timestamp_ns: int
    content: bytes
    crc32c: int
    files: _containers.RepeatedCompositeFieldContainer[FileEntry]
    def __init__(self, protocol: _Optional[int] = ..., folder: _Optional[str] = ..., call: _Optional[_Union[FilesRequest.Call, str]] = ..., paths: _Optional[_Iterable[str]] = ..., begin: _Optional[int] = ..., end: _Optional[int] = ..., size: _Optional[int] = ..., finish: _Optional[bool] = ..., permission: _Optional[int] = ..., timestamp_ns: _Optional[int] = ..., content: _Optional[bytes] = ..., crc32c: _Optional[int] = ..., files: _Optional[_Iterable[_Union[FileEntry, _Mapping]]] = ...) -> None: ...

class FilesReply(_message.Message):
    __slots__ = ("refusal", "error", "what", "entries", "content", "crc32c", "end", "boot")
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    CRC32C_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    BOOT_FIELD_NUMBER: _ClassVar[int]
    refusal: Refusal
    error: int
    what: str
    entries: _containers.RepeatedCompositeFieldContainer[FileEntry]
    content: bytes
    crc32c: int
    end: bool
    boot: str
    def __init__(self, refusal: _Optional[_Union[Refusal, _Mapping]] = ..., error: _Optional[int] = ..., what: _Optional[str] = ..., entries: _Optional[_Iterable[_Union[FileEntry, _Mapping]]] = ..., content: _Optional[bytes] = ..., crc32c: _Optional[int] = ..., end: _Optional[bool] = ..., boot: _Optional[str] = ...) -> None: ...

class FileEntry(_message.Message):
    __slots__ = ("kind", "name", "size", "timestamp_ns", "permission")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        FILE: _ClassVar[FileEntry.Kind]
        FOLDER: _ClassVar[FileEntry.Kind]
        LINK: _ClassVar[FileEntry.Kind]
        OTHER: _ClassVar[FileEntry.Kind]
    FILE: FileEntry.Kind
    FOLDER: FileEntry.Kind
    LINK: FileEntry.Kind
    OTHER: FileEntry.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_NS_FIELD_NUMBER: _ClassVar[int]
    PERMISSION_FIELD_NUMBER: _ClassVar[int]
    kind: FileEntry.Kind
    name: str
    size: int
    timestamp_ns: int
    permission: int
    def __init__(self, kind: _Optional[_Union[FileEntry.Kind, str]] = ..., name: _Optional[str] = ..., size: _Optional[int] = ..., timestamp_ns: _Optional[int] = ..., permission: _Optional[int] = ...) -> None: ...
