"""The sections and keys of a cluster's configuration, with their defaults and one line on each.

For ``replication/config.py``, which reads and checks them, and for parts that take a section as an argument.
Units come last in a key's name; byte sizes may also be text such as "64 MiB".
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import unquote

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    PositiveInt,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from replication.core.grants import Accept
from replication.core.ids import check_name
from replication.errors import FormatError, RequestError

_ADDRESS = re.compile(
    r"(?:(?P<host>[A-Za-z0-9._-]{1,253})|\[?(?P<v6>[0-9A-Fa-f:.]+(?:%[A-Za-z0-9._-]+)?)\]?):(?P<port>[0-9]{1,5})"
)

WAIT_MAX_S = 14 * 86400.0  # some waits count milliseconds in 31 bits
AGE_MAX_S = 100 * 365 * 86400.0
_MIB = 1 << 20
_MASTER = re.compile(r"local(\[(\d+|\*)(, *\d+)?\])?|spark://.+|yarn|k8s://.+")
_BYTES = TypeAdapter(ByteSize)


def split_address(address: str) -> tuple[str, int]:
    """``host:port`` or ``[v6]:port`` as (host, port); ValueError when it is neither."""
    found = _ADDRESS.fullmatch(address)
    if found is None or int(found["port"]) > 65535:
        raise ValueError(f"{address[:100]!r} is not host:port")
    return found["host"] or found["v6"], int(found["port"])


def join_address(host: str, port: int) -> str:
    """``host:port`` or ``[v6]:port``."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def check_address(address: str) -> None:
    """RequestError if a given address is not ``host:port``."""
    try:
        split_address(address)
    except ValueError as error:
        raise RequestError(str(error), "Write host:port, for example 10.0.0.7:7450") from None


def _name(value: str) -> str:
    try:
        return check_name(value, "name")
    except FormatError as e:
        raise ValueError(str(e)) from None


def _address(value: str) -> str:
    split_address(value)
    return value


def _servers(value: str) -> str:
    for server in value.split(",") if value else ():
        split_address(server if ":" in server and not server.endswith("]") else f"{server}:2181")
    return value


def _spark_master(value: str) -> str:
    if value.startswith("sc://"):
        raise ValueError("Spark Connect cannot run replay's jobs; give the master of the cluster behind it")
    if not _MASTER.fullmatch(value):
        raise ValueError(f"{value!r} is not local[CORES], spark://HOST:PORT, yarn or k8s://ADDRESS")
    return value


def _path(value: Path, info: ValidationInfo) -> Path:
    folder: Path = (info.context or {}).get("folder") or Path.cwd()
    try:
        return Path(os.path.abspath(folder / value.expanduser()))
    except RuntimeError:
        raise ValueError(f"{value} is in the home of a user who is not known here") from None


def _folder(value: Path, info: ValidationInfo) -> Path:
    folder = _path(value, info)
    if set(b'?,"\\').intersection(str(folder).encode(errors="replace")):  # ? also for a byte that is not UTF-8
        raise ValueError(
            f"{str(folder)!r} has one of ? , \" \\ or is not UTF-8, so addresses and Spark's options cannot name it;"
            " choose another folder"
        )
    return folder


def sqlite_url(file: Path) -> str:
    """The SQLAlchemy URL of a database file, whose path it takes for quoted."""
    return f"sqlite:///{str(file).replace('%', '%25')}"


def _ledger_url(value: str, info: ValidationInfo) -> str:
    scheme, found, file = value.partition(":///")
    if value and "://" not in value:
        raise ValueError("not an SQLAlchemy URL such as sqlite:///ledger.db or postgresql+psycopg://host/database")
    if not found or not scheme.startswith("sqlite"):
        return value
    quoted, asked, query = file.partition("?")
    return f"{scheme}{sqlite_url(_path(Path(unquote(quoted)), info)).removeprefix('sqlite')}{asked}{query}"


def _store_url(value: str) -> str:
    if value and not re.match(r"(?!file:)[A-Za-z][A-Za-z0-9+.-]*://(?!.*::).|file:///.", value):
        raise ValueError(f"{value!r} is not the address of a store, such as s3://bucket/walship or file:///x; no ::")
    return value


def _memory(value: str) -> str:
    if not re.fullmatch(r"\d+[kmgt]", value):
        raise ValueError(f"{value!r} is not a size such as 1g or 512m")
    return value


def _bytes(value: object) -> object:
    try:
        return int(_BYTES.validate_python(value)) if isinstance(value, str) else value
    except ValidationError:
        raise ValueError(f'{value!r} is neither a number of bytes nor text such as "64 MiB"') from None


Name = Annotated[str, AfterValidator(_name)]
Address = Annotated[str, AfterValidator(_address)]
Servers = Annotated[str, AfterValidator(_servers)]
OptionalAddress = Annotated[str, AfterValidator(lambda value: value and _address(value))]
PathFromFile = Annotated[Path, AfterValidator(_path)]
Memory = Annotated[str, AfterValidator(_memory)]
SparkMaster = Annotated[str, AfterValidator(_spark_master)]
Folder = Annotated[Path, AfterValidator(_folder)]
OptionalPath = Annotated[PathFromFile | None, BeforeValidator(lambda value: value or None)]
StoreUrl = Annotated[str, AfterValidator(_store_url)]
LedgerUrl = Annotated[str, AfterValidator(_ledger_url)]
Bytes = Annotated[PositiveInt, BeforeValidator(_bytes)]  # 1048576 or "1 MiB"
Seconds = Annotated[float, Field(gt=0, le=WAIT_MAX_S)]  # that something waits
Age = Annotated[float, Field(gt=0, le=AGE_MAX_S)]  # that something is kept


class _Section(BaseModel):
    model_config = ConfigDict(allow_inf_nan=False, extra="forbid", frozen=True, validate_default=True)

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_as_number(cls, value: object, info: ValidationInfo) -> object:
        if isinstance(value, bool) and cls.model_fields[str(info.field_name)].annotation in (int, float):
            raise ValueError("Input should be a number")
        return value


class ClusterSection(_Section):
    """This cluster and host."""

    name: Name = Field(description="the cluster's name, the same on all hosts; it never changes")
    host: Name = Field("h0", description="this host's slot, part of file ids; one per host, never reused")
    data_dir: Folder = Field(Path("."), description="for WALs, landing files, ledger and warehouse")
    location: str = Field("", description="where this host is, in your own words; shown by status")
    standby: bool = Field(False, description="whether a new cluster begins as STANDBY; has no effect later")


class ZooKeeperSection(_Section):
    """Elections, members, roles and assignments."""

    embedded: bool = Field(True, description="run a ZooKeeper server (needs PySpark's jars)")
    port: int = Field(2181, ge=1, le=65535, description="of the embedded server; unique on this machine")
    listen: str = Field("127.0.0.1", description="the address that the embedded server listens on")
    servers: Servers = Field("", description="host:port,... of an ensemble; empty means the embedded server")
    root: str = Field("", description="empty means /walship/<name>")
    ca: OptionalPath = Field(None, description="PEM file; with cert and key, TLS to ZooKeeper, here and at peers")
    cert: OptionalPath = Field(None, description="PEM file: certificate of this host and of the embedded server")
    key: OptionalPath = Field(None, description="PEM file: the key of cert")
    session_timeout_s: Seconds = Field(10.0, description="a process that is silent for longer counts as gone")

    @property
    def secured(self) -> bool:
        """Whether connections to ZooKeeper use mutual TLS."""
        return self.ca is not None and self.cert is not None and self.key is not None


class LedgerSection(_Section):
    """The SQL database of rules, statuses, coverage and landings."""

    url: LedgerUrl = Field("", repr=False, description="SQLAlchemy URL; empty means SQLite in data_dir")
    busy_timeout_s: Seconds = Field(30.0, description="how long a write waits for other processes")


class WriterSection(_Section):
    """From append to ack."""

    wal_bytes_max: Bytes = Field(256 * _MIB, description="a WAL rolls at this size ...")
    wal_age_max_s: Age = Field(3600.0, description="... or age")
    buffer_bytes_max: Bytes = Field(64 * _MIB, description="appends block when this much memory waits for the disk")
    append_timeout_s: Seconds = Field(30.0, description="how long an append waits for the disk before it fails")
    lease_s: Seconds = Field(10.0, description="how long a role change waits for writers")
    codec: Literal["lz4", "zstd", "none"] = Field("lz4", description="compression of rows in WALs and on the link")


class WorkerSection(_Section):
    """From WAL to peer."""

    window_bytes: Bytes = Field(16 * _MIB, description="unacknowledged bytes per stream to a peer")
    streams_max: PositiveInt = Field(4, description="streams to a peer for large files, at most")
    message_bytes_max: Bytes = Field(2 * _MIB, le=1 << 30, description="size; those that fit CPU caches are fastest")
    closed_time_interval_s: Seconds = Field(1.0, description="raises closed time and sends it to peers")
    heartbeat_interval_s: Seconds = Field(1.0, description="looks for new assignments and rules, if none is announced")
    retry_min_s: Seconds = Field(0.2, description="backoff after a first failure of a peer ...")
    retry_max_s: Seconds = Field(60.0, description="... and after many in a row")
    ack_timeout_s: Seconds = Field(12.0, description="a peer that is silent for longer counts as gone")
    dropped_tables: Literal["hold", "skip"] = Field(
        "hold", description="rows of a table dropped here and at the peer: hold or skip them"
    )


class SharedFolder(_Section):
    """A folder of the receiver's host that other clusters copy files to and from."""

    path: PathFromFile
    clusters: tuple[str, ...]  # names and patterns
    read_only: bool = False


class ReceiverSection(_Section):
    """The peer's end of the link."""

    listen: Address = Field("127.0.0.1:0", description="host:port; port 0 means any free one")
    advertise: OptionalAddress = Field("", description="host:port that peers connect to; empty means listen")
    message_bytes_max: Bytes = Field(8 * _MIB, le=1 << 30, description="refuses larger; not less than any sender's")
    streams_max: PositiveInt = Field(64, description="refuses more streams at once ...")
    peer_streams_max: PositiveInt = Field(16, description="... and more of one peer")
    accept: Accept = Field(
        "defined", description="callers without a grant: peers defined here; ask: kept for a person; any-certified"
    )
    administrators: tuple[str, ...] = Field(
        (), description="names in certificates of tls.ca whose holders may grant: definecluster --admin-cert"
    )
    landing_bytes_max: Bytes = Field(64 << 30, description="refuses more while this much waits for replay")
    disk_free_min_bytes: Bytes = Field(512 * _MIB, description="refuses more while less is free")
    commit_ahead_max_s: Age = Field(86400.0, description="refuses commit times further ahead of the clock here")
    folders: dict[str, SharedFolder] = Field(
        default_factory=dict,
        description='for copies by other clusters: inbox = { path = "/data/inbox", clusters = ["east"] }',
    )


class MasterSection(_Section):
    """Observe, plan, act."""

    enabled: bool = Field(True, description="whether this host is a candidate in the election")
    interval_s: Seconds = Field(1.0, description="how often it observes, plans and acts")
    range_bytes: Bytes = Field(256 * _MIB, description="closed files of twice this are split for several streams")
    retry_min_s: Seconds = Field(1.0, description="backoff after a first failure of a peer's ZooKeeper ...")
    retry_max_s: Seconds = Field(60.0, description="... and after many in a row")
    peer_bytes_max: Bytes = Field(64 << 30, description="disk budget per peer; past it the oldest files are released")
    spill_url: StoreUrl = Field("", description="s3://... or file:///...; past the budget files move there instead")


class ReplaySection(_Section):
    """From landed frames to tables."""

    enabled: bool = Field(True, description="false: this cluster keeps no tables and only relays frames")
    interval_s: Seconds = Field(0.2, description="pause between rounds; longer when rounds take longer")
    fold_interval_s: Seconds = Field(30.0, description="how far <table> may be behind; longer when folds take longer")
    fold_hold_s: Age = Field(600.0, description="how long fold waits for a replicated time that stands still")
    changes_retention_s: Age = Field(7 * 86400.0, description="how long <table>__changes keeps folded changes")
    history_s: Age = Field(3 * 86400.0, description="default of new tables: how old a version may be")
    maintenance_interval_s: Seconds = Field(300.0, description="how often expired files and snapshots are removed")
    spark_master: SparkMaster = Field("local[2]", description="local[CORES], or the URL of a Spark cluster")
    driver_bytes_max: Bytes = Field(
        4 * _MIB,
        description="up to this many bytes the driver decodes a round or compacts a table itself; more is a Spark job",
    )
    spark_idle_s: float = Field(
        60.0, ge=0, le=WAIT_MAX_S, description="Spark ends after this time without a job; 0 keeps it, as spark_ui does"
    )
    spark_ui: bool = Field(False, description="open Spark's UI, which asks for no password; status shows its address")
    spark_events: OptionalPath = Field(None, description="folder of Spark's event logs, for its history server")
    driver_memory: Memory = Field("1g", description="heap of Spark's driver; with local[...], of all of Spark")
    jars: tuple[PathFromFile, ...] = Field((), description="Iceberg and JDBC jars; empty means the fetched ones")
    jars_sha256: tuple[str, ...] = Field((), description="SHA-256 sums of jars; one that is not listed is not loaded")
    spark: dict[str, str] = Field(default_factory=dict, description="further Spark properties")

    @property
    def has_local_executors(self) -> bool:
        """Whether executors run in the driver's own process, and so read this host's files."""
        return self.spark_master.startswith("local")

    @property
    def spark_properties(self) -> dict[str, str]:
        """Spark properties of replay's application; those of ``spark`` win."""
        found = {"spark.ui.enabled": "true", "spark.ui.killEnabled": "false"} if self.spark_ui else {}
        if self.spark_events is not None:
            found |= {"spark.eventLog.enabled": "true", "spark.eventLog.dir": self.spark_events.absolute().as_uri()}
        return found | self.spark


class TlsSection(_Section):
    """Mutual TLS between clusters."""

    ca: OptionalPath = Field(None, description="PEM file: the authority of both sides' certificates")
    cert: OptionalPath = Field(None, description="PEM file: this cluster's certificate")
    key: OptionalPath = Field(None, description="PEM file: the key of cert")
    deny: OptionalPath = Field(None, description="file of revoked certificates: a SHA-256 fingerprint a line")
    allow_plaintext: bool = Field(False, description="allow connections without TLS beyond loopback")

    @property
    def enabled(self) -> bool:
        """Whether links use mutual TLS."""
        return self.ca is not None and self.cert is not None and self.key is not None


class CatalogSection(_Section):
    """Iceberg catalog properties, passed through; empty means JDBC beside the ledger."""

    warehouse: StoreUrl = Field("", description="file:///... or s3://... for tables' files; empty means data_dir")
    spark: dict[str, str] = Field(default_factory=dict, repr=False, description="for Spark: type, uri, ...")
    pyiceberg: dict[str, str] = Field(default_factory=dict, repr=False, description="the same catalog, for PyIceberg")


class DrillsSection(_Section):
    """Drills on a fork of the tables."""

    timeout_s: Seconds = Field(3600.0, description="a drill ends by then, and holds old files no longer")
    probe_timeout_s: Seconds = Field(300.0, description="a probe that takes longer is stopped")
    apply_timeout_s: Seconds = Field(60.0, description="how long a drill waits for what has landed to be in the tables")
    keep_s: Age = Field(86400.0, description="how long the tested instant stays tagged, with its files")
    stale_s: Age = Field(8 * 86400.0, description="a failover warns when the last good drill is older")
    write_bytes_max: Bytes = Field(1024 * _MIB, description="what the probes of one drill may write to its fork")
    nice: int = Field(19, ge=0, le=19, description="CPU niceness of a drill; lower it if the cores are always busy")


class TimelineSection(_Section):
    """Which files datasets have, as of any instant."""

    url: StoreUrl = Field("", description="file:///... or s3://... for instants; empty: data_dir, or the warehouse")
    service: bool = Field(False, description="whether clients ask a server, which is a role of up then")
    incremental: bool = Field(True, description="false: partitions are listed again after each instant")
    listen: Address = Field("127.0.0.1:0", description="host:port of the server; port 0 means any free one")
    server: OptionalAddress = Field("", description="host:port that clients ask; empty means this host's server")
    datasets: OptionalPath = Field(None, description="declared datasets that the server tells of, else in data_dir")
    store: Literal["memory", "spillable", "embedded"] = Field(
        "memory", description="where the server keeps views: memory, spillable (to disk), embedded (RocksDB)"
    )
    memory_bytes_max: Bytes = Field(256 * _MIB, description="what views take of memory with the spillable store")
    requests_max: PositiveInt = Field(64, description="refuses more questions at once")
    timeout_s: Seconds = Field(5.0, description="a server that is silent for longer counts as away")
    retry_min_s: Seconds = Field(0.5, description="clients ask again after this time when a call failed ...")
    retry_max_s: Seconds = Field(30.0, description="... and after many in a row; they list files meanwhile")


class MonitorSection(_Section):
    """A page with the status, and metrics, for programs of this user on this host."""

    port: int = Field(0, ge=0, le=65535, description="of 127.0.0.1, served by up; 0 for none")


class FailoverSection(_Section):
    """Switchover and failover."""

    lease: Literal["own", "peer", "witness"] = Field(
        "own",
        description="who confirms that writers may ack: own: this ZooKeeper alone, and what is acked during a cut is "
        "lost in a failover; peer, witness: they, too: a cut from them stops writes, a failover waits for lease_s; set "
        "it alike in all clusters",
    )
    lease_peer: str = Field("", description="the peer that confirms, where lease is peer")
    witness: str = Field("", description="host:port[,...]/root of a third ZooKeeper, or another cluster's, to confirm")
    hooks: OptionalPath = Field(None, description="folder of programs that run before and after each phase")
    hook_timeout_s: Seconds = Field(30.0, description="a hook that takes longer is killed and has failed")


class LogSection(_Section):
    """Logs of the processes."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="the lowest level that is written: debug, info, warning, error"
    )
    format: Literal["json", "console"] = Field("json", description="JSON lines, or text for people")
