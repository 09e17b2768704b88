"""A cluster's configuration: defaults < one TOML file < ``WALSHIP_*`` environment < flags.

:func:`load` is the only reader; parts get the values they need as arguments. Unknown keys fail, and all problems are
reported together. Relative paths count from the TOML file's folder. An environment variable is
``WALSHIP_<SECTION>_<KEY>``, for instance ``WALSHIP_WRITER_LEASE_S=5``; lists and tables are given as JSON.
The sections and their keys are in ``replication/settings.py``.
"""

from __future__ import annotations

import codecs
import json
import os
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo

from replication.core.ids import ROOT
from replication.core.roles import LEASE_S_MAX
from replication.errors import ConfigError
from replication.log import has_secrets
from replication.permissions import exposed
from replication.settings import (
    CatalogSection,
    ClusterSection,
    DrillsSection,
    FailoverSection,
    LedgerSection,
    LogSection,
    MasterSection,
    MonitorSection,
    ReceiverSection,
    ReplaySection,
    TimelineSection,
    TlsSection,
    WorkerSection,
    WriterSection,
    ZooKeeperSection,
    join_address,
    split_address,
    sqlite_url,
)
from replication.tls_checks import is_loopback, missing_addresses, plain_connections, unfit_files

ENV_PREFIX = "WALSHIP_"
# Of the command line, the caches and the tests: not configuration, so not refused as unknown keys.
_OTHER_VARIABLES = ("AUDIT_URL", "CLUSTER", "CONFIG", "CACHE", "DATASETS", "DEBUG", "DRILL")
_OTHER_PREFIXES = ("TEST_", "BENCH_", "DEMO_", "DRILL_", "HOOK_")
_MESSAGES = {  # in place of pydantic's, which name Python's types
    "path_type": "Input should be a path",
    "tuple_type": "Input should be a list",
    "dict_type": 'Input should be a table such as { name = "value" }',
}


class Config(BaseModel):
    """The configuration of one cluster on one host; made by :func:`load`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cluster: ClusterSection
    zookeeper: ZooKeeperSection = ZooKeeperSection()
    ledger: LedgerSection = LedgerSection()
    writer: WriterSection = WriterSection()
    worker: WorkerSection = WorkerSection()
    receiver: ReceiverSection = ReceiverSection()
    master: MasterSection = MasterSection()
    replay: ReplaySection = ReplaySection()
    tls: TlsSection = TlsSection()
    catalog: CatalogSection = CatalogSection()
    timeline: TimelineSection = TimelineSection()
    monitor: MonitorSection = MonitorSection()
    drills: DrillsSection = DrillsSection()
    failover: FailoverSection = FailoverSection()
    log: LogSection = LogSection()

    @property
    def data_dir(self) -> Path:
        """The folder of this host's files."""
        return self.cluster.data_dir

    @property
    def config_file(self) -> Path:
        """Names the file that ``up`` was started with."""
        return self.run_dir / "config"

    @property
    def wal_dir(self) -> Path:
        """WALs of this host's writers."""
        return self.data_dir / "wal"

    @property
    def landing_dir(self) -> Path:
        """Landing files of this host's receivers."""
        return self.data_dir / "landing"

    @property
    def warehouse_dir(self) -> Path:
        """Iceberg's files, if they are on a file system and the catalog names no other place."""
        given = self.catalog.warehouse
        return Path(given.removeprefix("file://")) if given.startswith("file:///") else self.data_dir / "warehouse"

    @property
    def warehouse(self) -> str:
        """The address of Iceberg's files; not escaped, since Iceberg takes it as it is written."""
        return self.catalog.warehouse or f"file://{self.warehouse_dir}"

    @property
    def has_warehouse_here(self) -> bool:
        """Whether tables' files lie in ``warehouse_dir``, so that a disk of this host tells their size."""
        return self.warehouse.startswith("file:///") and not (self.catalog.spark or self.catalog.pyiceberg)

    @property
    def catalog_file(self) -> Path:
        """SQLite file of the default catalog."""
        return self.data_dir / "catalog.db"

    @property
    def timeline_url(self) -> str:
        """Where instants are: a folder that all hosts reach, where they share the ledger."""
        beside = f"{self.warehouse.rstrip('/')}/.walship-timeline"
        return self.timeline.url or (beside if self.shares_ledger else f"file://{self.data_dir / 'timeline'}")

    @property
    def drills_dir(self) -> Path:
        """Reports of this host's drills, and their schedule."""
        return self.data_dir / "drills"

    @property
    def datasets_file(self) -> Path:
        """Where datasets are declared whose specifications the timeline's server answers with."""
        return self.timeline.datasets or self.data_dir / "datasets.toml"

    @property
    def zookeeper_dir(self) -> Path:
        """Data of the embedded ZooKeeper server."""
        return self.data_dir / "zookeeper"

    @property
    def log_dir(self) -> Path:
        """One ``<role>.log`` per process."""
        return self.data_dir / "log"

    @property
    def run_dir(self) -> Path:
        """Locks and process ids."""
        return self.data_dir / "run"

    @property
    def ledger_url(self) -> str:
        """SQLAlchemy URL of the ledger."""
        return self.ledger.url or sqlite_url(self.data_dir / "ledger.db")

    @property
    def shares_ledger(self) -> bool:
        """Whether the cluster may have several hosts: not with a ledger on SQLite."""
        return bool(self.ledger.url) and not self.ledger.url.startswith("sqlite")

    @property
    def replay_asks_receivers(self) -> bool:
        """Whether replay reads files from receivers, which it finds in ZooKeeper: other hosts' files, or executors'."""
        return self.shares_ledger or not self.replay.has_local_executors

    @property
    def host_id_file(self) -> Path:
        """Tells this data directory from another one that was given the same host slot."""
        return self.data_dir / "host.id"

    @property
    def zookeeper_servers(self) -> str:
        """``host:port,...`` to connect to."""
        return self.zookeeper.servers or join_address(self.zookeeper.listen, self.zookeeper.port)

    @property
    def zookeeper_root(self) -> str:
        """The cluster's root node."""
        return self.zookeeper.root or f"/walship/{self.cluster.name}"


def load(
    file: Path | str | None = None,
    overrides: Mapping[str, Mapping[str, Any]] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Config:
    """Read one cluster's configuration.

    Args:
        file: the TOML file; None for the other layers only (paths then count from the current folder).
        overrides: section → key → value, from flags; they win.
        environ: the environment; ``os.environ`` when None.

    Raises:
        ConfigError: all problems, one per line.
    """
    path = None if file is None else Path(os.path.abspath(file))
    layers = _merge(path, overrides or {}, os.environ if environ is None else environ)
    context = {"folder": path.parent if path else Path.cwd()}
    problems: list[str] = []
    config: Config | None = None
    try:
        config = Config.model_validate(layers, context=context)
    except ValidationError as e:
        variables = _environment(os.environ if environ is None else environ)
        problems = [_problem(error["loc"], error["type"], error["msg"], variables) for error in e.errors()]
        config = _without_faults(layers, e, context)
    if config is not None:
        problems += _contradictions(config)
    if path is not None and has_secrets(_read(path)) and (reason := exposed(path)):
        problems.append(f"there are passwords in it, and {reason}")
    if problems or config is None:
        where = str(path) if path else "the configuration"
        raise ConfigError(
            "\n".join([f"{where} cannot be used:", *(f"  - {problem}" for problem in problems)]),
            "Correct them and start again. walship init writes a commented file with every key",
        )
    return config


def default_toml(name: str, data_dir: Path | str = ".", **values: Mapping[str, Any]) -> str:
    """A commented TOML file with every key at its default.

    Args:
        name: the cluster's name.
        data_dir: where it keeps its data, absolute or relative to the file.
        values: section → key → value to set rather than to comment out, for instance ``zookeeper={"port": 2182}``.
    """
    given = {section: dict(keys) for section, keys in values.items()}
    given["cluster"] = {"name": name, "data_dir": str(data_dir), **given.get("cluster", {})}
    unknown = set(given) - set(Config.model_fields)
    assert not unknown, f"no such sections: {unknown}"
    lines = [
        "# walship: one cluster on one host. Commented lines show the defaults.",
        "# Each key can also come from the environment: WALSHIP_<SECTION>_<KEY>, which wins over this file.",
        '# Relative paths count from this file\'s folder; byte sizes may be text such as "64 MiB".',
    ]
    for section, field in Config.model_fields.items():
        model = field.annotation
        assert isinstance(model, type) and issubclass(model, BaseModel)
        lines += ["", f"[{section}]  # {(model.__doc__ or '').strip()}"]
        lines += [_toml_line(key, spec, given.get(section, {})) for key, spec in model.model_fields.items()]
    return "\n".join(lines) + "\n"


def _environment(environ: Mapping[str, str]) -> dict[str, Any]:
    """``WALSHIP_<SECTION>_<KEY>`` as section → key → text."""
    found: dict[str, dict[str, Any]] = {}
    for variable, value in environ.items():
        name = variable.removeprefix(ENV_PREFIX)
        if name == variable or name in _OTHER_VARIABLES or name.startswith(_OTHER_PREFIXES):
            continue
        section, _, key = name.lower().partition("_")
        found.setdefault(section, {})[key] = _from_text(value)
    return found


def _from_text(value: str) -> Any:
    if value[:1] in ("{", "["):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


def _merge(path: Path | None, overrides: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """Section → key → value. A layer's tables are joined with those of the layers below, key by key."""
    if path is not None and not path.is_file():
        raise ConfigError(f"there is no configuration file {path}", "Write one: walship init DIR")
    return _over(_over(_read(path) if path is not None else {}, _environment(environ)), overrides)


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    joined = dict(below)
    for key, value in above.items():
        known = joined.get(key)
        joined[key] = _over(known, value) if isinstance(known, Mapping) and isinstance(value, Mapping) else value
    return joined


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        marked = path.read_bytes()[:2] in (codecs.BOM_UTF8[:2], codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
        remedy = "Save it as UTF-8 without a byte order mark" if marked else "Correct that line"
        raise ConfigError(f"{path} is not TOML: {e}", remedy) from None
    except OSError as e:
        raise ConfigError(f"{path} cannot be read: {e.strerror}", "Check its permissions") from None


def _problem(loc: tuple[int | str, ...], kind: str, message: str, variables: Mapping[str, Any]) -> str:
    key = ".".join(str(part) for part in loc)
    given = [name for name in variables.get(str(loc[0]), {}) if loc[1:2] in ((), (name,))]
    if given:
        key += f" (from {', '.join(f'{ENV_PREFIX}{loc[0]}_{name}'.upper().rstrip('_') for name in given)})"
    if kind == "extra_forbidden":
        section = Config.model_fields.get(str(loc[0])) if len(loc) > 1 else None
        known = getattr(section.annotation, "model_fields", {}) if section else Config.model_fields
        return f"{key}: unknown {'key' if section else 'section'}; known are {', '.join(known)}"
    return f"{key}: {_MESSAGES.get(kind) or message.removeprefix('Value error, ')}"


def _without_faults(layers: Mapping[str, Any], fault: ValidationError, context: Mapping[str, Any]) -> Config | None:
    """The same with faulty keys at their defaults, so that contradictions elsewhere are reported in the same go."""
    kept = {section: dict(keys) if isinstance(keys, Mapping) else keys for section, keys in layers.items()}
    for error in fault.errors():
        section, *rest = error["loc"]
        keys = kept.get(str(section))
        if rest and isinstance(keys, dict):
            keys.pop(str(rest[0]), None)
        else:
            kept.pop(str(section), None)
    kept.setdefault("cluster", {}).setdefault("name", "unnamed")
    try:
        return Config.model_validate(kept, context=context)
    except ValidationError:
        return None


def _contradictions(config: Config) -> Iterator[str]:
    tls, receiver, worker, zookeeper = config.tls, config.receiver, config.worker, config.zookeeper
    files = {"ca": tls.ca, "cert": tls.cert, "key": tls.key}
    yield from unfit_files("tls", files)
    if tls.deny is not None and not tls.deny.is_file():
        yield f"tls.deny: there is no file {tls.deny}; make an empty one, and name certificates there later"
    yield from unfit_files("zookeeper", {"ca": zookeeper.ca, "cert": zookeeper.cert, "key": zookeeper.key})
    if zookeeper.embedded and not (zookeeper.secured or tls.allow_plaintext or is_loopback(zookeeper.listen)):
        yield (
            f"zookeeper.listen: {zookeeper.listen} is not loopback and there is no TLS; set zookeeper.ca, "
            "zookeeper.cert and zookeeper.key, or tls.allow_plaintext = true on a network you trust"
        )
    if not tls.allow_plaintext:
        engines = {"catalog.spark.uri": config.catalog.spark, "catalog.pyiceberg.uri": config.catalog.pyiceberg}
        catalogs = {key: str(each.get("uri", "")) for key, each in engines.items()}
        yield from plain_connections(zookeeper, config.failover.witness, {"ledger.url": config.ledger.url, **catalogs})
    addresses = {"receiver.listen": receiver.listen, "timeline.listen": config.timeline.listen}
    if config.timeline.server:  # without TLS a client cannot tell who answers
        addresses["timeline.server"] = config.timeline.server
    for key, address in addresses.items():
        if not (tls.enabled or tls.allow_plaintext or any(files.values()) or is_loopback(split_address(address)[0])):
            yield (
                f"{key}: {address} is not loopback and there is no TLS; "
                "set tls.ca, tls.cert and tls.key, or tls.allow_plaintext = true on a network you trust"
            )
    yield from missing_addresses(zookeeper, receiver)
    if worker.message_bytes_max > worker.window_bytes:
        yield "worker.message_bytes_max: more than worker.window_bytes, so no message could ever be sent"
    for section, value in (("worker", worker), ("master", config.master), ("timeline", config.timeline)):
        if value.retry_min_s > value.retry_max_s:
            yield f"{section}.retry_min_s: more than {section}.retry_max_s"
    yield from _unfit_lease(config)
    if config.zookeeper.root and not ROOT.match(config.zookeeper.root):
        yield f"zookeeper.root: {config.zookeeper.root!r} is not like /walship/east, which other clusters can name"
    catalog = config.catalog
    if config.shares_ledger and config.replay.enabled and not (catalog.warehouse or catalog.spark or catalog.pyiceberg):
        yield (
            "catalog.warehouse: missing; hosts share the ledger, so name a place for tables that all of them reach, "
            "such as s3://bucket/tables or file:///mnt/shared/tables"
        )
    if config.writer.lease_s < 2 * config.master.interval_s:
        yield "writer.lease_s: less than twice master.interval_s"


def _unfit_lease(config: Config) -> Iterator[str]:
    section = config.failover
    for kind, key in (("peer", "lease_peer"), ("witness", "witness")):
        if (section.lease == kind) != bool(getattr(section, key)):
            yield f"failover.{key}: name it where failover.lease is {kind}, and only there"
    if section.lease != "own" and config.writer.lease_s > LEASE_S_MAX:
        yield f"writer.lease_s: more than {LEASE_S_MAX:g} s, for which no failover should wait"
    servers, _, root = section.witness.partition("/")
    if section.witness and not (servers and root):
        yield f"failover.witness: {section.witness} is not a host:port[,host:port...]/root"
    if servers and servers == config.zookeeper.servers:
        yield "failover.witness: this cluster's own ZooKeeper; name one at a third place"


def _toml_line(key: str, spec: FieldInfo, given: Mapping[str, Any]) -> str:
    default = spec.get_default(call_default_factory=True, validated_data={})
    line = f"{key} = {_toml_value(given[key])}" if key in given else f"# {key} = {_toml_value(default)}"
    return f"{line:<36}  # {spec.description}" if spec.description else line


def _toml_value(value: object) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(k)} = {_toml_value(v)}" for k, v in value.items()) + "}"
    if isinstance(value, tuple | list):
        return "[" + ", ".join(_toml_value(item) for item in value) + "]"
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    return json.dumps("" if value is None else str(value), ensure_ascii=False)
