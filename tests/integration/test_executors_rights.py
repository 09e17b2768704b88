"""Executors of a cluster whose catalog is in PostgreSQL get neither its password nor the ledger's address."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from tests import postgresql as pg

PASSWORD = r"hidden:\1"
_GIVEN = """
import dataclasses, pickle, sys
from pathlib import Path
import pyarrow as pa
from replication.tables.catalog.catalog import CATALOG, CatalogProperties, IcebergCatalog
from replication.tables.catalog.shared_catalog import shared_catalog
from replication.tables.spark.application import Application
from replication.tables.spark.iceberg import IcebergTables
from replication.tables.spark.session import open_session
from tests.tables_made import as_decode, keyed
folder, url = Path(sys.argv[1]), sys.argv[2]
properties = CatalogProperties(*shared_catalog(url, f"file://{folder}/warehouse"))
spark = open_session(properties, folder / "spark")
context = spark.sparkContext
given, parallelize = [], context.parallelize
def kept(rows, tasks):
    given.append(rows)
    return parallelize(rows, tasks)
context.parallelize = kept
tables = IcebergTables(IcebergCatalog(properties), Application.of(spark), small_bytes=-1)
tables.create(keyed("ops.t"))
rows = dataclasses.replace(as_decode(pa.table({"k": ["a"], "v": [1]})), size=1)
tables.append("ops.t__changes", rows, None, {})
print(tables.work.jobs, tables.query(f"select v from {CATALOG}.ops.t__changes").to_pylist())
table = spark._jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(spark._jsparkSession, f"{CATALOG}.ops.t")
out = spark._jvm.java.io.ByteArrayOutputStream()
stream = spark._jvm.java.io.ObjectOutputStream(out)
stream.writeObject(spark._jvm.org.apache.iceberg.spark.source.SerializableTableWithSize.copyOf(table))
stream.flush()
ledger = url.partition("@")[2]
for what, raw in {
    "tasks": b"".join(given[0]),
    "settings": repr(context.getConf().getAll()).encode(),
    "tables": bytes(out.toByteArray()),
}.items():
    print(what, len(raw) > 100, b"hidden" in raw, ledger.encode() in raw)
tables.close()
"""


@pytest.mark.skipif(not pg.BINARIES, reason=pg.MISSING)
def test_neither_tasks_nor_settings_nor_tables_of_queries_have_the_catalog_s_password(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with pg.server("127.0.0.1", port) as server:
        with psycopg.connect(server.url("postgres").replace("+psycopg", ""), autocommit=True) as connection:
            quoted = PASSWORD.replace("'", "''")
            connection.execute(f"create role reader login createdb password '{quoted}'")
            connection.execute("create database west owner reader")
        rules = Path(server.data, "pg_hba.conf")
        rules.write_text("host all reader 127.0.0.1/32 scram-sha-256\n" + rules.read_text())
        with psycopg.connect(server.url("postgres").replace("+psycopg", ""), autocommit=True) as connection:
            connection.execute("select pg_reload_conf()")
        url = f"postgresql://reader:hidden%3A%5C1@127.0.0.1:{port}/west?sslmode=disable"
        done = subprocess.run(
            [sys.executable, "-c", _GIVEN, str(tmp_path), url],
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            timeout=400,
        )
        assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "1 [{'v': 1}]",
        "tasks True False False",
        "settings True False False",
        "tables True False False",
    ]
