"""Checks before ``walship up`` starts anything, each with a remedy."""

from __future__ import annotations

import errno
import fcntl
import importlib.util
import os
import shlex
import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from replication import log
from replication.config import Config
from replication.coordination.embedded import find_jars
from replication.core.frame import FILE_HEADER_BYTES, read_file_header
from replication.core.ids import FileId
from replication.errors import ConfigError, FormatError, LockedFileError, NoSpaceError, SparkMissingError
from replication.files.owner import is_here, owner_name, shown_owner
from replication.ledger.base import Ledger
from replication.tables.spark.jars import java_home_check
from replication.tls_checks import check_named

_log = log.get(__name__)
_SENDING_NEEDS = 16 << 20
_NOT_DAMAGED = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY)
_NEED_DIRECTORIES = ("wal", "landing", "warehouse", "log", "run")


def check_host(config: Config, roles: Sequence[str]) -> None:
    """Make the data directory, and check what ``roles`` need to run.

    Raises:
        ConfigError: Java or ZooKeeper is missing or wrong, the data directory cannot be used, its ledger is missing or
            damaged, or the certificate of links is not the cluster's.
        NoSpaceError: too little disk is free.
        SparkMissingError: PySpark is not installed.
    """
    _make_directories(config)
    _check_space(config, roles)
    _check_leftovers(config)
    check_moved(config)
    if {"receiver", "worker"}.intersection(roles):
        check_named(config.tls, config.cluster.name)
    spark, embedded = "replay" in roles, "zookeeper" in roles and config.zookeeper.embedded
    if spark or embedded:
        java_home_check()
    if spark and importlib.util.find_spec("pyspark") is None:
        raise SparkMissingError("PySpark is not installed, and the replay role needs it", _spark_remedy(config))
    if embedded:
        find_jars()


@contextmanager
def data_dir_lock(config: Config) -> Iterator[None]:
    """Lock a data directory for who runs the cluster, or gives it another id; a killed process's lock is free again.

    Raises:
        LockedFileError: another process has it.
        ConfigError, NoSpaceError: it cannot be taken.
    """
    file = config.run_dir / "up.pid"
    with _usable(config.data_dir):
        for folder in (file.parent, config.log_dir):
            folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        _lock(descriptor, config)
        with _usable(config.data_dir):
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"{os.getpid()}\n{owner_name()}\n".encode())
        try:
            yield
        finally:
            with suppress(OSError):  # the disk has failed, or become read-only
                os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, config: Config) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pid = os.read(descriptor, 32).decode(errors="replace").partition("\n")[0] or "unknown"
        raise LockedFileError(
            f"cluster {config.cluster.name} in {config.run_dir.parent} is used by another walship (process {pid})",
            "If that is walship up, stop it: walship down. If it is reincarnate or rebuildledger, wait",
        ) from None
    except OSError as error:
        raise ConfigError(
            f"{config.run_dir / 'up.pid'} cannot be locked: {error.strerror}", "Put [cluster] data_dir on a local disk"
        ) from None


def running_pid(run_dir: Path) -> int | None:
    """Process id of the ``walship up`` that holds a data directory; None when there is none.

    Raises:
        PermissionError: another user's directory, of which that is not known.
    """
    file = run_dir / "up.pid"
    try:
        with _opened(file) as opened:
            if not opened.read():  # nobody's: a lock, however short, would be in the way of one that starts
                return None
            try:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                opened.seek(0)
                return int(opened.readline() or b"0") or None
    except PermissionError:
        raise
    except (OSError, ValueError):
        return None
    return None


def runs_elsewhere(run_dir: Path) -> str:
    """The ``walship up`` of ``running_pid``, if its process id means another process here; else ""."""
    try:
        owner = (run_dir / "up.pid").read_text(encoding="utf-8").partition("\n")[2].strip()
    except OSError:
        return ""
    return shown_owner(owner) if owner and not is_here(owner) else ""


def _opened(file: Path) -> BinaryIO:
    try:
        return file.open("rb+")
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EACCES):
            raise
        return file.open("rb")  # a read-only disk, or another user's process


def _make_directories(config: Config) -> None:
    with _usable(config.data_dir):
        for name in _NEED_DIRECTORIES:
            (config.data_dir / name).mkdir(parents=True, exist_ok=True)
    if not os.access(config.data_dir, os.W_OK):
        raise ConfigError(f"the data directory {config.data_dir} is not writable", "Correct its permissions")


@contextmanager
def _usable(data_dir: Path) -> Iterator[None]:
    """ConfigError, or NoSpaceError, where the data directory cannot be written to."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise NoSpaceError(f"no space is left under {data_dir}", "Make room there, then start again") from None
        raise ConfigError(
            f"the data directory {data_dir} cannot be used: {error.filename}: {error.strerror}",
            "Choose another under [cluster] data_dir, or correct its permissions; is its disk mounted read-only?",
        ) from None


def _check_space(config: Config, roles: Sequence[str]) -> None:
    fills = bool({"receiver", "replay"}.intersection(roles))
    free = shutil.disk_usage(config.data_dir).free
    needed = config.receiver.disk_free_min_bytes if fills else _SENDING_NEEDS
    if free < needed:
        raise NoSpaceError(
            f"only {free >> 20} MiB are free under {config.data_dir}; {needed >> 20} MiB are needed"
            + (" ([receiver] disk_free_min_bytes)" if fills else ""),
            "Make room. Sending needs none: walship up --roles master,worker"
            if fills
            else "Make room, or choose another [cluster] data_dir",
        )


def _check_leftovers(config: Config) -> None:
    """Refuse to start if files exist without their ledger: their numbers would be used again."""
    if config.shares_ledger or not (ledger := _ledger_file(config)).name:
        return
    files = [file for folder in (config.wal_dir, config.landing_dir) for file in folder.glob("*.wal")]
    again = f"For a test cluster: remove {config.data_dir} and start again"
    remedy = f"Rebuild it: walship rebuildledger. {again}"
    if files and not ledger.exists():
        raise ConfigError(f"{config.data_dir} holds {len(files)} WAL and landing files but no {ledger.name}", remedy)
    if ledger.exists() and ledger.stat().st_size:
        try:
            with closing(sqlite3.connect(f"{ledger.as_uri()}?mode=ro", uri=True)) as opened:
                opened.execute("select count(*) from sqlite_master").fetchone()
        except sqlite3.DatabaseError as error:
            remedy = f"Restore it, or {_rebuild(config)}. {again}"
            if error.sqlite_errorcode & 0xFF in _NOT_DAMAGED:
                remedy = "End the program that has it open, or correct its permissions, then start again"
            raise ConfigError(f"{ledger} is not a readable ledger: {error}", remedy) from None


def _ledger_file(config: Config) -> Path:
    from sqlalchemy.engine import make_url  # deferred: down needs none

    return Path(make_url(config.ledger_url).database or "")


def _rebuild(config: Config) -> str:
    ledger = shlex.quote(str(_ledger_file(config)))
    return f"rebuild it: mkdir lost && mv {ledger}* lost/ && walship rebuildledger --yes"


def check_ledger_age(config: Config, ledger: Ledger) -> None:
    """Refuse a ledger that was restored from an older copy: it would use the numbers of newer files again.

    Raises:
        ConfigError: there are files that it does not have, or that are of another host slot.
    """
    upcoming = ledger.files.upcoming(config.cluster.host)
    files = [file for folder in (config.wal_dir, config.landing_dir) for file in folder.glob("*.wal")]
    newer = [f for f in files if f.stem.isdigit() and int(f.stem) >= upcoming and f.stat().st_size > FILE_HEADER_BYTES]
    if newer:
        if (slot := _slot_of(min(newer))) not in ("", config.cluster.host):
            raise ConfigError(
                f"{config.data_dir} is of host {slot} of the cluster, not of {config.cluster.host}: nobody would ship"
                f" or replay {min(newer)}",
                f'Correct [cluster] host = "{slot}", or give host {config.cluster.host} a data_dir of its own',
            )
        raise ConfigError(
            f"the ledger is older than the files beside it: it has none from number {upcoming} on,"
            f" but there is {min(newer)}",
            "Restore a newer copy of the database; or register them, on each host while all are down: walship"
            " reincarnate --yes"
            if config.shares_ledger
            else f"Restore a newer copy; or {_rebuild(config)}",
        )


def _slot_of(file: Path) -> str:
    """The host slot in a file's header; "" when it cannot be read."""
    try:
        with file.open("rb") as opened:
            return read_file_header(opened.read(FILE_HEADER_BYTES))[0].slot
    except (OSError, FormatError):
        return ""


def follow_files(config: Config, ledger: Ledger) -> None:
    """Correct the paths of this host's files in the ledger, before the host starts.

    A data directory without tables may be moved, or reached by another path, as through a link.

    Raises:
        ConfigError: it is a copy beside its original, whose files it would ship and delete.
    """
    host = config.cluster.host
    there = {f.name: f for folder in (config.wal_dir, config.landing_dir) for f in folder.glob("*.wal")}
    paths: dict[FileId, str] = {}
    for row in ledger.files.all(host):
        before = Path(row.path)
        now = there.get(before.name)
        if now is None or now == before or row.is_stored or row.file.slot != host:
            continue
        if os.path.exists(before) and not before.samefile(now):
            raise ConfigError(
                f"{config.data_dir} is a copy: its ledger names files in {before.parent}, which are still there",
                "Start the cluster there; or, if this is to go on in its place, move that folder away first",
            )
        paths[row.file] = str(now)
    if paths:
        ledger.files.relocate(paths)
        _log.info("files_relocated", files=len(paths), folder=str(config.data_dir))


def check_moved(config: Config) -> None:
    """Refuse a moved or copied data directory: Iceberg has full paths, so a copy would change the original's tables.

    Raises:
        ConfigError: the data directory was moved or copied.
    """
    given = config.catalog
    if config.shares_ledger or given.spark or given.pyiceberg or given.warehouse or not config.catalog_file.exists():
        return
    try:
        with closing(sqlite3.connect(f"{config.catalog_file.as_uri()}?mode=ro", uri=True)) as opened:
            rows = opened.execute("select metadata_location from iceberg_tables").fetchall()
    except sqlite3.DatabaseError:  # no table yet, or damage, which whoever opens it reports
        return
    here = config.warehouse_dir.resolve()
    if rows:
        from replication.tables.pyiceberg.local_io import local_path  # deferred: it loads Arrow

    for location in sorted(location for (location,) in rows if location):
        file = Path(local_path(location))
        if file.parts[-5:-4] == ("warehouse",) and not file.resolve().is_relative_to(here):
            was = file.parents[4]  # warehouse/NAMESPACE/TABLE/metadata/FILE
            link = ("ln", "-s", str(config.data_dir), str(was))
            raise ConfigError(
                f"{config.data_dir} was moved or copied: its tables name their files in {was}",
                f"Move it back; or, if nothing is there now: {shlex.join(link)}",
            )


def _spark_remedy(config: Config) -> str:
    install = "pip install 'walship[spark]'"
    if config.zookeeper.embedded:
        return f"{install}; the embedded ZooKeeper is part of it, too"
    if config.shares_ledger:
        return f"{install}, or leave replay to another host: --roles master,worker,receiver"
    return f"{install}, or keep no tables and only relay frames: [replay] enabled = false"
