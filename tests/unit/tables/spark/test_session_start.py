"""Spark that does not start, in plain words."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import pytest

from replication.errors import SparkMissingError
from replication.tables.catalog.catalog import catalog_properties
from replication.tables.spark import session


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

    monkeypatch.setattr(session, "_started", stopped)
    with pytest.raises(SparkMissingError, match="spark://gone:7077") as raised:
        session.open_session(catalog_properties(tmp_path), tmp_path / "spark", master="spark://gone:7077")
    assert raised.value.what.endswith("IllegalStateException: Cannot call methods on a stopped SparkContext.")
    assert "spark_master" in raised.value.hint
