"""How Spark is started for a master, and what is said when it does not start."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

import pytest

from replication.errors import SparkMissingError
from replication.tables.catalog.catalog import catalog_properties
from replication.tables.spark import session

pytestmark = pytest.mark.heavy


def test_an_application_that_its_master_does_not_take_is_refused_without_java_s_stack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    protocol = pytest.importorskip("py4j.protocol")

    def stopped(settings: object) -> NoReturn:
        """As the session is that was stopped when its master did not answer."""
        raise protocol.Py4JError(
            "An error occurred while calling None.org.apache.spark.sql.classic.SparkSession.\n"
            ": java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext.\n"
            "\tat org.apache.spark.SparkContext.assertNotStopped(SparkContext.scala:128)\n"
            "\tat java.base/java.lang.Thread.run(Thread.java:840)\n"
        )

    monkeypatch.setattr(session, "_start_jvm", stopped)
    with pytest.raises(SparkMissingError, match="spark://gone:7077") as raised:
        session.open_session(catalog_properties(tmp_path), tmp_path / "spark", master="spark://gone:7077")
    assert raised.value.what.endswith("IllegalStateException: Cannot call methods on a stopped SparkContext.")
    assert "spark_master" in raised.value.hint


@pytest.mark.parametrize(
    ("master", "is_here"),
    [
        ("local[2]", True),
        ("spark://127.0.0.1:7077", True),
        ("spark://localhost:7077", True),
        ("spark://10.0.0.1:7077,10.0.0.2:7077", False),
        ("k8s://https://10.0.0.1:6443", False),
        ("yarn", False),
    ],
)
def test_executors_on_other_hosts_can_reach_the_driver_and_only_they_have_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, master: str, is_here: bool
) -> None:
    pytest.importorskip("pyspark")
    given: list[Mapping[str, str]] = []
    monkeypatch.setattr(session, "_started", given.append)
    monkeypatch.setenv("SPARK_LOCAL_IP", "")  # so that what is set is forgotten after the test
    monkeypatch.delenv("SPARK_LOCAL_IP")
    session.open_session(catalog_properties(tmp_path), tmp_path / "spark", master=master)
    (settings,) = given
    assert [settings.get(f"spark.driver.{name}") for name in ("host", "bindAddress")] == (
        ["127.0.0.1"] * 2 if is_here else [None] * 2
    )
    assert os.environ.get("SPARK_LOCAL_IP") == ("127.0.0.1" if is_here else None)
