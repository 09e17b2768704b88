"""``walship replay --submit``: replay as an application that ``spark-submit`` starts.

Executors need Python and pyarrow only. Spark unpacks a package of walship and of what it requires for each of them.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from replication.config import Config
from replication.errors import ConfigError
from replication.permissions import create_private

_SOURCE = Path(__file__).resolve().parents[2]
_OWN = ("peer", "replication", "shell", "walship.py")
#: What executors import, and what a driver on the cluster does, which also needs PostgreSQL's client for the ledger.
_EXECUTORS = ("duckdb", "fsspec", "google-crc32c", "grpcio", "protobuf", "psutil", "pyiceberg", "structlog", "tenacity")
_DRIVER = ("walship", "psycopg", "psycopg-binary")
#: Executors have Arrow, and Spark brings PySpark.
_THERE = frozenset({"numpy", "pandas", "py4j", "pyarrow", "pyspark"})
_MAIN = """\
import os
import sys
{config}
sys.path[:0] = sys.argv[2:]
from shell.processes.role_process import leave, serve

leave(serve("replay", sys.argv[1], 0))
"""
#: In cluster mode: Spark gives executors every other file of an application, and the ledger is none of their business.
_CONFIG = """
with open(os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "w", encoding="utf-8") as config:
    config.write({text!r})
"""


@dataclass(frozen=True, slots=True)
class Submission:
    """A command line of ``spark-submit``, whose files are written, and its environment."""

    command: tuple[str, ...]
    environment: Mapping[str, str]


def submission(config: Config, file: Path, deploy_mode: str) -> Submission:
    """Write the package, the properties and the program below ``run/submit``; return how to run them.

    Standard input of the program is a pipe of Spark's. When it ends, replay stops. ``deploy_mode`` is ``client`` for a
    driver on this host, ``cluster`` for one on a host of Spark's choice.

    Raises:
        ConfigError: the deploy mode does not fit, or the jars cannot be found or fetched.
        SparkMissingError: PySpark or Java is missing.
        LockedFileError: replay runs here.
    """
    from replication.tables.catalog.catalog import configured_catalog  # deferred, as all of Spark
    from replication.tables.spark.session import PACKAGE, submission

    _check(config, deploy_mode)
    folder = config.run_dir / "submit"
    folder.mkdir(parents=True, exist_ok=True)
    on_cluster = deploy_mode == "cluster"
    package, program, properties = folder / "walship.zip", folder / "replay.py", folder / "spark.conf"
    settings, environment = submission(
        config.replay, configured_catalog(config), folder / "scratch", package, on_cluster=on_cluster
    )
    write_package(package, _DRIVER if on_cluster else _EXECUTORS)
    config_text = _CONFIG.format(text=file.read_text(encoding="utf-8")) if on_cluster else ""
    create_private(program)
    program.write_text(_MAIN.format(config=config_text), encoding="utf-8")
    create_private(properties)  # it may have passwords of stores
    lines = [f"{name} {_escaped(name, value)}\n" for name, value in settings.items()]
    properties.write_text("".join(lines), encoding="utf-8")
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(_SOURCE), os.environ.get("PYTHONPATH"))))
    command = (
        *(_spark_submit(), "--deploy-mode", deploy_mode),
        *("--load-spark-defaults", "--properties-file", str(properties)),
    )
    if on_cluster:
        return Submission((*command, str(program), file.name, PACKAGE), environment)
    return Submission((*command, str(program), str(file)), environment)


def write_package(file: Path, required: Sequence[str] = _EXECUTORS) -> None:
    """Replace ``file`` by a zip archive of walship's code and these distributions, but for pyarrow and Spark."""
    made = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED, compresslevel=1, strict_timestamps=False) as archive:
            for name, source in sorted({**_required_files(required), **_own_files()}.items()):
                archive.write(source, name)
        made.replace(file)
    finally:
        made.unlink(missing_ok=True)


def _check(config: Config, deploy_mode: str) -> None:
    from peer.replay.loop import replay_lock

    if deploy_mode not in ("client", "cluster"):
        raise ConfigError(f"there is no deploy mode {deploy_mode}", "Deploy modes are client and cluster")
    if not config.replay.enabled:
        raise ConfigError(
            "[replay] enabled = false: this host's files do not wait for replay, and may be gone before it",
            "Set it to true, and leave replay out of walship up --roles",
        )
    if deploy_mode == "client":
        with replay_lock(config.run_dir):  # else the program would find out, a package later
            return
    if config.replay.spark_master.startswith(("local", "spark:")):
        raise ConfigError(
            f"Spark runs no Python driver in cluster mode on {config.replay.spark_master}",
            "Use --deploy-mode client, or YARN or Kubernetes: [replay] spark_master",
        )
    if not config.shares_ledger:
        raise ConfigError(
            "in cluster mode the driver runs on any host, but the ledger is a file of this one",
            "Use --deploy-mode client, or a ledger on PostgreSQL: [ledger] url",
        )


def _spark_submit() -> str:
    """Return the program of ``SPARK_HOME``, else of PySpark."""
    from replication.coordination.embedded import find_jars

    home = os.environ.get("SPARK_HOME") or str(find_jars().parent)
    found = shutil.which("spark-submit", path=str(Path(home) / "bin"))
    if found is None:
        raise ConfigError(f"there is no bin/spark-submit in {home}", "Correct or unset SPARK_HOME")
    return found


def _own_files() -> dict[str, Path]:
    found = {}
    for top in _OWN:
        place = _SOURCE / top
        for file in place.rglob("*") if place.is_dir() else (place,):
            if file.is_file() and "__pycache__" not in file.parts:
                found[file.relative_to(_SOURCE).as_posix()] = file
    return found


def _required_files(names: Sequence[str]) -> dict[str, Path]:
    """Return the files of these installed distributions and of those that they require, at any depth."""
    found: dict[str, Path] = {}
    known: set[str] = set(_THERE)
    wanted = list(names)
    while wanted:
        name = re.sub(r"[-_.]+", "-", wanted.pop()).lower()
        if name in known:
            continue
        known.add(name)
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:  # an option, or of another system
            continue
        wanted += [_named(line) for line in distribution.requires or () if "extra ==" not in line]
        for file in distribution.files or () if name != "walship" else ():
            source = Path(str(distribution.locate_file(file)))
            if ".." not in file.parts and "__pycache__" not in file.parts and source.is_file():
                found[file.as_posix()] = source
    return found


def _named(requirement: str) -> str:
    """Return the name of the distribution in a line such as ``rich>=14; python_version > "3"``."""
    found = re.match(r"[\w.-]+", requirement)
    return found[0] if found else ""


def _escaped(name: str, value: str) -> str:
    """Return a value as Java's property files have it.

    Raises:
        ConfigError: blanks at its ends, which spark-submit leaves out.
    """
    if value != value.strip():
        raise ConfigError(
            f"the value of {name} begins or ends with a blank, which spark-submit leaves out",
            "Give it without: [replay] spark, [catalog] spark or pyiceberg",
        )
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
