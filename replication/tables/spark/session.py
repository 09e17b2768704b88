"""One quiet, small, offline Spark session for walship's own jobs.

The jars come from ``jars.py``. Nothing here is needed for reading, and nothing but DataFrame and SQL calls is made on
the session elsewhere, so that a Spark Connect or a user's own session does as well.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from replication.errors import ConfigError, SparkMissingError
from replication.tables.catalog.catalog import CATALOG, CatalogProperties
from replication.tables.spark.jars import POSTGRESQL, ensure_jars, heed_any_path, java_home_check, pinned_jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_INCUBATOR = b"WARNING: Using incubator modules"
_LOG4J = """\
status = error
rootLogger.level = {level}
rootLogger.appenderRef.stderr.ref = stderr
logger.shell.name = org.apache.spark.api.python.PythonGatewayServer
logger.shell.level = {level}
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{{yyyy-MM-dd HH:mm:ss}} %p %c{{1}}: %m%n%ex{{1}}
"""


_OWN_SETTINGS = {
    "spark.app.name": "walship replay",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.autoBroadcastJoinThreshold": str(64 << 20),
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
}


def open_session(
    catalog: CatalogProperties,
    scratch: Path,
    *,
    master: str = "local[2]",
    driver_memory: str = "1g",
    jars: Sequence[Path] = (),
    properties: Mapping[str, str] | None = None,
    log_level: str = "off",
    archive_to: Path | None = None,
) -> SparkSession:
    """Start a session (3 to 8 s) with ``catalog`` under the name ``walship``.

    Args:
        catalog: the Iceberg catalog's properties.
        scratch: a directory for Spark's temporary files and settings.
        master: Spark's master URL.
        driver_memory: heap of the driver, which with a local master does the executors' work too.
        jars: jars named in the configuration; empty means the pinned ones.
        properties: further Spark properties, which win.
        log_level: of the JVM; what fails reaches the caller as an exception anyway.
        archive_to: a file that the JVM writes its classes to when it ends; see ``class_archive.py``.

    Raises:
        SparkMissingError: PySpark or Java is not there.
        ConfigError: the jars cannot be had.
    """
    java_home = _java_home()
    from pyspark.errors import PySparkException

    scratch.mkdir(parents=True, exist_ok=True)
    settings = {
        **_OWN_SETTINGS,
        "spark.master": master,
        "spark.driver.memory": driver_memory,
        "spark.driver.extraJavaOptions": _java_options(scratch, log_level, archive_to),
        "spark.jars": ",".join(str(jar) for jar in ensure_jars(jars, _driver(catalog))),
        **_places(scratch),
        **_catalog_settings(catalog),
        **(properties or {}),
    }
    _set_environment(master, java_home)
    try:
        return _started(settings)
    except (PySparkException, OSError, RuntimeError) as error:
        line = str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
        raise SparkMissingError(
            f"Spark did not start: {line}", "Check [replay] spark and driver_memory, and the free memory"
        ) from None


def _java_home() -> str:
    if importlib.util.find_spec("pyspark") is None:
        raise SparkMissingError(
            "PySpark is not installed, so this cluster cannot replay", "pip install 'walship[spark]'"
        )
    try:
        return java_home_check()
    except ConfigError as error:
        raise SparkMissingError(error.what, error.hint) from None


def _java_options(scratch: Path, log_level: str, archive_to: Path | None) -> str:
    log4j = scratch / "log4j2.properties"
    log4j.write_text(_LOG4J.format(level=log_level), encoding="utf-8")
    options = (
        f"-Dlog4j2.configurationFile={log4j.as_uri()}",
        f'"-Djava.io.tmpdir={scratch.absolute()}"',
        "-XX:+UseSerialGC",
        *_archive_options(archive_to),
    )
    return " ".join(options)


def _places(scratch: Path) -> dict[str, str]:
    """Where Spark finds this package and puts its own files."""
    return {
        "spark.executorEnv.PYTHONPATH": os.pathsep.join(_python_path()),
        "spark.local.dir": str(scratch),
        "spark.sql.warehouse.dir": f"file://{scratch / 'spark-warehouse'}",  # as it is written: Spark escapes nothing
    }


def _set_environment(master: str, java_home: str) -> None:
    """What Spark reads from the environment only."""
    os.environ["JAVA_HOME"] = java_home
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # else it asks what the host's name resolves to
    heed_any_path(os.environ)
    os.environ["PYSPARK_PYTHON"] = sys.executable


def _started(settings: Mapping[str, str]) -> SparkSession:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder
    for key, value in settings.items():
        builder = builder.config(key, value)
    _start_jvm(settings)
    return builder.getOrCreate()


def _start_jvm(settings: Mapping[str, str]) -> None:
    """Start the JVM as the session would, without Java's warning about incubator modules."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is not None:
        return
    output, saying = os.pipe()
    threading.Thread(target=_pass_on, args=(output,), name="spark-stderr", daemon=True).start()  # ends with the JVM
    try:
        conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
        gateway = launch_gateway(conf, {"stderr": saying})  # type: ignore[no-untyped-call]
    finally:
        os.close(saying)
    SparkContext._ensure_initialized(gateway=gateway)


def _pass_on(output: int) -> None:
    with open(output, "rb") as lines:
        for line in lines:
            if not line.startswith(_INCUBATOR):
                os.write(2, line)


def class_archive() -> Path:
    """Where set-up puts the archive of Spark's classes, see ``class_archive.py``: in this Python environment."""
    return Path(sys.prefix) / "share" / "walship" / "spark.jsa"


def _archive_options(archive_to: Path | None) -> list[str]:
    """JVM options that use the archive, silent when another Java or other jars made it."""
    if archive_to is not None:
        return [f'"-XX:ArchiveClassesAtExit={archive_to}"', "-Xlog:disable"]
    archive = class_archive()
    return [f'"-XX:SharedArchiveFile={archive}"', "-Xlog:disable"] if archive.is_file() else []


def settings_for_others(catalog: CatalogProperties) -> dict[str, str]:
    """With these any Spark session has a cluster's tables, and their views ``<table>__latest``, in ``walship``."""
    packages = ",".join(jar.coordinates for jar in pinned_jars(_driver(catalog)))
    return {"spark.jars.packages": packages, **_catalog_settings(catalog)}


def _catalog_settings(catalog: CatalogProperties) -> dict[str, str]:
    return {
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        f"spark.sql.catalog.{CATALOG}": "org.apache.iceberg.spark.SparkCatalog",
        **{f"spark.sql.catalog.{CATALOG}.{key}": value for key, value in catalog.spark.items()},
    }


def _driver(catalog: CatalogProperties) -> str:
    """Which database driver a catalog needs besides SQLite's."""
    return POSTGRESQL if catalog.spark.get("uri", "").startswith("jdbc:postgresql:") else ""


def _python_path() -> list[str]:
    """Where executors on this machine find walship's own packages, as this process does."""
    root = str(Path(__file__).resolve().parents[3])
    given = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    return [root, *(part for part in given if part != root)]
