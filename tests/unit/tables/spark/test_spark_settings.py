"""What a Spark session is started with, without starting one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from replication.errors import SparkMissingError
from replication.tables.catalog.catalog import CatalogProperties
from replication.tables.spark import session as spark


class _Builder:
    """Refuses to start, and keeps what it was to start in."""

    address: str | None = None
    given: dict[str, str] = {}

    def config(self, key: str, value: str) -> _Builder:
        self.given[key] = value
        return self

    def getOrCreate(self) -> None:
        type(self).address = os.environ.get("SPARK_LOCAL_IP")
        raise RuntimeError("it was only looked at")


@pytest.mark.parametrize(
    ("master", "given", "address"),
    [("local[2]", None, "127.0.0.1"), ("local[2]", "10.0.0.1", "10.0.0.1"), ("spark://head:7077", None, None)],
)
def test_a_local_spark_need_not_resolve_the_hosts_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, master: str, given: str | None, address: str | None
) -> None:
    pyspark = pytest.importorskip("pyspark.sql")
    monkeypatch.setattr(os, "environ", dict(os.environ))
    os.environ.pop("SPARK_LOCAL_IP", None)
    if given is not None:
        os.environ["SPARK_LOCAL_IP"] = given
    monkeypatch.setattr(pyspark.SparkSession, "builder", _Builder())
    _Builder.given.clear()
    monkeypatch.setattr(spark, "java_home_check", lambda: "/java")
    monkeypatch.setattr(spark, "_start_jvm", lambda _: None)
    monkeypatch.setattr(spark, "ensure_jars", lambda *_: ())
    with pytest.raises(SparkMissingError, match="only looked at"):
        spark.open_session(CatalogProperties({}, {}), tmp_path, master=master)
    assert _Builder.address == address
    assert _Builder.given.get("spark.authenticate") == ("true" if master.startswith("local") else None)


def test_no_other_user_sees_a_key_on_the_command_line_of_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[tuple[str, str]] = []

    def launch(conf: Any, options: Any) -> None:
        launched.extend(conf.getAll())
        raise RuntimeError("it was only looked at")

    pytest.importorskip("pyspark")
    monkeypatch.setattr("pyspark.java_gateway.launch_gateway", launch)
    monkeypatch.setattr("pyspark.SparkContext._gateway", None)
    secret = (
        "spark.hadoop.fs.azure.account.key.lake.dfs.core.windows.net",
        "spark.hadoop.google.cloud.auth.service.account.private.key",
        "spark.hadoop.fs.s3a.secret.key",
        "spark.sql.catalog.walship.uri",
    )
    shown = {"spark.driver.memory": "1g", "spark.driver.extraJavaOptions": "-Da.password=b"}
    with pytest.raises(RuntimeError, match="only looked at"):
        spark._start_jvm({**dict.fromkeys(secret, "hush"), **shown})
    assert dict(launched) == shown


@pytest.mark.parametrize(
    ("master", "cores", "given"),
    [
        ("local", 1, "local[2]"),
        ("local[3]", 3, "local[6]"),
        ("local[*,4]", os.cpu_count(), f"local[{2 * (os.cpu_count() or 1)},4]"),
        ("spark://head:7077", None, "spark://head:7077"),
    ],
)
def test_a_local_master_runs_a_fold_beside_a_round(master: str, cores: int | None, given: str) -> None:
    made = spark._tasks_at_once(master)
    assert made["spark.master"] == given
    assert made.get("spark.default.parallelism") == (None if cores is None else str(cores))


def test_an_unfit_java_home_is_not_what_spark_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyspark.sql")
    monkeypatch.setattr(os, "environ", dict(os.environ, JAVA_HOME="/an/old/java"))
    monkeypatch.setattr(spark, "java_home_check", lambda: "/java")
    monkeypatch.setattr(spark, "ensure_jars", lambda *_: ())
    started_with = []

    def start(_: object) -> None:
        started_with.append(os.environ["JAVA_HOME"])
        raise RuntimeError("it was only looked at")

    monkeypatch.setattr(spark, "_start_jvm", start)
    with pytest.raises(SparkMissingError, match="only looked at"):
        spark.open_session(CatalogProperties({}, {}), tmp_path)
    assert started_with == ["/java"]


def test_spark_says_nothing_of_its_modules_and_all_else(capfd: pytest.CaptureFixture[str]) -> None:
    said, saying = os.pipe()
    os.write(saying, b"WARNING: Using incubator modules: jdk.incubator.vector\njava.lang.OutOfMemoryError\n")
    os.close(saying)
    spark._pass_on(said)
    assert capfd.readouterr().err == "java.lang.OutOfMemoryError\n"


@pytest.mark.parametrize(
    ("master", "length", "own"), [("local[2]", 20, True), ("local[2]", 90, False), ("spark://h:7077", 20, False)]
)
def test_workers_sockets_lie_where_their_path_is_short_and_every_host_has_the_folder(
    master: str, length: int, own: bool
) -> None:
    scratch = Path("/" + "x" * length)
    assert (spark._socket_dir(scratch, master) == str(scratch)) is own
