"""Start a small, offline Spark session for walship's own jobs.

The jars come from ``jars.py``. Reads need no session.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import tempfile
import threading
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from replication.errors import ConfigError, SparkMissingError
from replication.log import has_secrets
from replication.permissions import create_private
from replication.settings import ReplaySection
from replication.tables.catalog.catalog import CATALOG, CatalogProperties
from replication.tables.spark.application import Application
from replication.tables.spark.jars import (
    POSTGRESQL,
    allow_any_path,
    archive_options,
    checked_jars,
    ensure_jars,
    java_home_check,
    pinned_jars,
)
from replication.tables.spark.jobs import warm_up

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CATALOGS = "spark.sql.catalog."
_SOCKET_BYTES = len("/.00000000-0000-0000-0000-000000000000.sock")
_INCUBATOR = b"WARNING: Using incubator modules"
_LOG4J = """\
status = error
rootLogger.level = off
rootLogger.appenderRef.stderr.ref = stderr
logger.shell.name = org.apache.spark.api.python.PythonGatewayServer
logger.shell.level = off
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{yyyy-MM-dd HH:mm:ss} %p %c{1}: %m%n%ex{1}
"""


#: They print a query's error on standard error, as JSON, beside raising it.
_QUERY_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")

#: What Spark unpacks the package of ``submission`` as.
PACKAGE = "walship"
_OF_THIS_HOST = (
    "spark.driver.extraJavaOptions",
    "spark.local.dir",
    "spark.pyspark.driver.python",
    "spark.python.unix.domain.socket.dir",
    "spark.sql.warehouse.dir",
)
_LOCAL = re.compile(r"local(\[(?P<cores>\d+|\*)(?P<failures>,\d+)?\])?")
_LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
_AUTHENTICATED = {"spark.authenticate": "true"}  # Spark draws a secret for each local application
_OWN_SETTINGS = {
    "spark.app.name": "walship replay",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.autoBroadcastJoinThreshold": str(64 << 20),
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    "spark.scheduler.mode": "FAIR",  # a long compaction leaves cores to rounds
    "spark.executorEnv.PYTHONSAFEPATH": "1",  # workers load no modules of the folder that they run in
    "spark.python.daemon.module": "replication.tables.spark.worker_daemon",
    "spark.python.unix.domain.socket.enabled": "true",  # by TCP the kernel delays each task's messages by 40 ms
    "spark.python.worker.reuse": "true",
    "spark.python.worker.faulthandler.enabled": "true",
}


def open_session(
    catalog: CatalogProperties | None,
    scratch: Path,
    *,
    master: str = "local[2]",
    driver_memory: str = "1g",
    jars: Sequence[Path] = (),
    properties: Mapping[str, str] | None = None,
    archive_to: Path | None = None,
) -> SparkSession:
    """Start a session (3 to 8 s) with ``catalog`` under the name ``walship``.

    Args:
        catalog: the Iceberg catalog's properties; None for a session without tables, which needs no jars.
        scratch: a directory for Spark's temporary files and settings.
        master: Spark's master URL.
        driver_memory: heap of the driver, which also does the executors' work with a local master.
        jars: the jars of the configuration; empty means the pinned ones.
        properties: further Spark properties; they override walship's.
        archive_to: a file to which the JVM writes its classes when it ends; see ``class_archive.py``.

    Raises:
        SparkMissingError: PySpark or Java is missing, or Spark did not start.
        ConfigError: the jars cannot be found or fetched.
    """
    if is_submitted():  # with settings of its own, which ``submission`` made
        return _knowing_password(_started({}), catalog, scratch)
    java_home = _java_home()
    _set_environment(os.environ, master, java_home)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    made = _settings(catalog, scratch, master, driver_memory, jars, archive_to)
    return _knowing_password(_started({**made, **(properties or {})}), catalog, scratch)


def submission(
    settings: ReplaySection, catalog: CatalogProperties, scratch: Path, package: Path, *, on_cluster: bool
) -> tuple[dict[str, str], dict[str, str]]:
    """Return Spark's properties and the environment for ``spark-submit`` of the replay application.

    Args:
        settings: of replay; its properties win.
        catalog: the Iceberg catalog's properties.
        scratch: a directory for Spark's temporary files and settings, with a driver on this host.
        package: the archive that Spark unpacks for each executor as ``PACKAGE``.
        on_cluster: the driver runs on a host of Spark's choice, which lacks the files of this one.

    Raises:
        SparkMissingError: PySpark or Java is missing.
        ConfigError: the jars cannot be found or fetched.
    """
    environment = dict(os.environ)
    _set_environment(environment, settings.spark_master, _java_home())
    jars = checked_jars(settings.jars, settings.jars_sha256)
    made = _settings(catalog, scratch, settings.spark_master, settings.driver_memory, jars)
    made["spark.executorEnv.PYTHONPATH"] = PACKAGE
    made["spark.pyspark.driver.python"] = sys.executable
    if on_cluster:
        for name in _OF_THIS_HOST:
            made.pop(name, None)
    made |= settings.spark_properties
    archives = (f"{package}#{PACKAGE}", made.get("spark.archives", ""))
    return made | {"spark.archives": ",".join(filter(None, archives))}, environment


def is_submitted() -> bool:
    """Whether ``spark-submit`` started this process: its JVM and settings are Spark's."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _settings(
    catalog: CatalogProperties | None,
    scratch: Path,
    master: str,
    driver_memory: str,
    jars: Sequence[Path],
    archive_to: Path | None = None,
) -> dict[str, str]:
    scratch.mkdir(parents=True, exist_ok=True)
    return {
        **_OWN_SETTINGS,
        **(_LOOPBACK if _is_here(master) else {}),
        **(_AUTHENTICATED if master.startswith("local") else {}),
        **_tasks_at_once(master),
        "spark.driver.memory": driver_memory,
        "spark.driver.extraJavaOptions": _java_options(scratch, archive_to),
        **_places(scratch, master),
        **(_table_settings(catalog, jars) if catalog is not None else {}),
    }


def _tasks_at_once(master: str) -> dict[str, str]:
    """A local master may run as many tasks again as jobs have, so that rounds need not wait for those of a fold."""
    found = _LOCAL.fullmatch(master)
    if found is None:
        return {"spark.master": master}
    cores = (os.cpu_count() or 1) if found["cores"] == "*" else int(found["cores"] or 1)
    made = {"spark.master": f"local[{2 * cores}{found['failures'] or ''}]"}
    return {**made, "spark.default.parallelism": str(cores)}


def application(settings: ReplaySection, catalog: CatalogProperties, scratch: Path) -> Application:
    """Return replay's application by ``settings``: it starts with the first job, or at once if it is to be kept."""
    if settings.spark_events is not None:
        settings.spark_events.mkdir(parents=True, exist_ok=True)

    def start() -> SparkSession:
        return open_session(
            catalog,
            scratch,
            master=settings.spark_master,
            driver_memory=settings.driver_memory,
            jars=checked_jars(settings.jars, settings.jars_sha256),
            properties=settings.spark_properties,
        )

    return Application(start, 0.0 if settings.spark_ui or is_submitted() else settings.spark_idle_s, warm_up)


def _java_home() -> str:
    if importlib.util.find_spec("pyspark") is None:
        raise SparkMissingError(
            "PySpark is not installed, so this cluster cannot replay", "pip install 'walship[spark]'"
        )
    try:
        return java_home_check()
    except ConfigError as error:
        raise SparkMissingError(error.what, error.hint) from None


def _java_reason(error: Exception) -> str:
    """Return the line of a Java exception's text that has its message; a stack trace follows."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return next((line.removeprefix(": ") for line in lines if line.startswith(": ")), lines[0])


def _java_options(scratch: Path, archive_to: Path | None) -> str:
    log4j = scratch / "log4j2.properties"
    log4j.write_text(_LOG4J, encoding="utf-8")
    options = (
        f"-Dlog4j2.configurationFile={log4j.as_uri()}",
        f'"-Djava.io.tmpdir={scratch.absolute()}"',
        "-XX:+UseSerialGC",
        *(f'"{option}"' for option in archive_options("spark", archive_to)),
    )
    return " ".join(options)


def _is_here(master: str) -> bool:
    """Whether a master's executors run on this host; others find the driver by this host's name."""
    return master.startswith("local") or urlsplit(master).hostname in ("127.0.0.1", "localhost")


def _places(scratch: Path, master: str) -> dict[str, str]:
    """Return the settings for Python's path and for Spark's own files."""
    return {
        "spark.executorEnv.PYTHONPATH": os.pathsep.join(_python_path()),
        "spark.local.dir": str(scratch),
        "spark.python.unix.domain.socket.dir": _socket_dir(scratch, master),
        "spark.sql.warehouse.dir": f"file://{scratch / 'spark-warehouse'}",  # not escaped: Spark does not unescape it
    }


def _socket_dir(scratch: Path, master: str) -> str:
    """Return a folder that executors have, too, and where a socket's path is within 104 bytes, the least limit."""
    is_short = len(os.fsencode(scratch)) + _SOCKET_BYTES < 104
    return str(scratch) if is_short and master.startswith("local") else tempfile.gettempdir()


def _set_environment(environment: MutableMapping[str, str], master: str, java_home: str) -> None:
    """Set the options that Spark reads only from the environment."""
    environment["JAVA_HOME"] = java_home
    if _is_here(master):
        environment.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # else Spark resolves the host's name
    allow_any_path(environment)


def _started(settings: Mapping[str, str]) -> SparkSession:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.logger import PySparkLogger
    from pyspark.sql import SparkSession

    for name in _QUERY_LOGGERS:
        PySparkLogger.getLogger(name).disabled = True
    builder = SparkSession.builder
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        _start_jvm(settings)
        return builder.getOrCreate()
    except Py4JError as error:
        master = settings.get("spark.master", "its master")
        what = f"Spark did not start on {master}: {_java_reason(error)}"
        hint = "Check that the master of [replay] spark_master answers and takes applications of this user"
        if master.startswith("local"):
            hint = "Check this host's free disk and memory, and [replay] spark and driver_memory"
    except (PySparkException, OSError, RuntimeError) as error:
        line = str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
        what, hint = f"Spark did not start: {line}", "Check [replay] spark and driver_memory, and the free memory"
    raise SparkMissingError(what, hint)


def _start_jvm(settings: Mapping[str, str]) -> None:
    """Start the JVM of the session, and drop Java's warning about incubator modules."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is not None:
        return
    output, stderr = os.pipe()
    threading.Thread(target=_pass_on, args=(output,), name="spark-stderr", daemon=True).start()  # ends with the JVM
    try:
        hidden = {key for key in settings if key.startswith(_CATALOGS) or has_secrets({key: ""})}
        shown = [(key, value) for key, value in settings.items() if key not in hidden]
        conf = SparkConf(loadDefaults=False).setAll(shown)  # every user sees the command line; the rest comes later
        gateway = launch_gateway(conf, {"stderr": stderr})  # type: ignore[no-untyped-call]
    finally:
        os.close(stderr)
    SparkContext._ensure_initialized(gateway=gateway)


def _pass_on(output: int) -> None:
    with open(output, "rb") as lines:
        for line in lines:
            if not line.startswith(_INCUBATOR):
                os.write(2, line)


def settings_for_others(catalog: CatalogProperties) -> dict[str, str]:
    """Return the settings that give any Spark session the catalog ``walship`` with a cluster's tables and views."""
    packages = ",".join(jar.coordinates for jar in pinned_jars(_driver(catalog)))
    return {"spark.jars.packages": packages, **_catalog_settings(catalog)}


def _table_settings(catalog: CatalogProperties, jars: Sequence[Path]) -> dict[str, str]:
    found = ensure_jars(jars, _driver(catalog))
    shown = CatalogProperties({k: v for k, v in catalog.spark.items() if k != _password_key(catalog)}, {})
    return {"spark.jars": ",".join(str(jar) for jar in found), **_catalog_settings(shown)}


def _password_key(catalog: CatalogProperties) -> str:
    """Return the property with the password of a catalog on PostgreSQL, which executors must not get, else ""."""
    return "jdbc.password" if _driver(catalog) and catalog.spark.get("jdbc.password") else ""


def _knowing_password(spark: SparkSession, catalog: CatalogProperties | None, scratch: Path) -> SparkSession:
    """Let PostgreSQL's driver find the catalog's password in a file of this driver's.

    Among Spark's settings it would reach executors: with the settings, and with each table of a query.
    """
    if catalog is not None and (key := _password_key(catalog)):
        file = (scratch / "pgpass").absolute()
        create_private(file)
        password = catalog.spark[key].replace("\\", "\\\\").replace(":", "\\:")
        file.write_text(f"*:*:*:*:{password}\n", encoding="utf-8")
        jvm: Any = spark._jvm
        jvm.java.lang.System.setProperty("org.postgresql.pgpassfile", str(file))
    return spark


def _catalog_settings(catalog: CatalogProperties) -> dict[str, str]:
    return {
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        f"spark.sql.catalog.{CATALOG}": "org.apache.iceberg.spark.SparkCatalog",
        **{f"spark.sql.catalog.{CATALOG}.{key}": value for key, value in catalog.spark.items()},
    }


def _driver(catalog: CatalogProperties) -> str:
    """Return ``POSTGRESQL`` when a catalog needs that driver besides SQLite's, else ""."""
    return POSTGRESQL if catalog.spark.get("uri", "").startswith("jdbc:postgresql:") else ""


def _python_path() -> list[str]:
    """Return the Python path for executors on this machine, with walship's own packages first."""
    root = str(Path(__file__).resolve().parents[3])
    parts = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    return [root, *(part for part in parts if part != root)]
