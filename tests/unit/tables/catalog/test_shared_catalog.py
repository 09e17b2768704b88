"""The catalog beside a ledger on PostgreSQL, as Spark and PyIceberg are told about it."""

from __future__ import annotations

import pytest
from sqlalchemy.engine import make_url

from replication import config as configuration
from replication.errors import ConfigError
from replication.ledger.sql.store.store import _postgresql_arguments
from replication.tables.catalog.catalog import configured_catalog
from replication.tables.catalog.shared_catalog import shared_catalog


def test_both_are_told_the_same_database_and_a_schema_of_its_own() -> None:
    url = "postgresql://walship:hu%20sh@db:5433/west?sslmode=verify-ca&sslrootcert=/pki/ca.pem&options=-c work_mem=1MB"
    spark, pyiceberg = shared_catalog(url, "s3://bucket/west")
    assert spark["uri"].startswith("jdbc:postgresql://db:5433/west?currentSchema=walship_catalog&")
    assert "sslmode=verify-ca" in spark["uri"] and "sslrootcert=%2Fpki%2Fca.pem" in spark["uri"]
    assert (spark["jdbc.user"], spark["jdbc.password"]) == ("walship", "hu sh") and "hu" not in spark["uri"]
    assert make_url(pyiceberg["uri"]).password == "hu sh"
    assert "work_mem" in pyiceberg["uri"] and "search_path%3Dwalship_catalog" in pyiceberg["uri"]
    assert spark["warehouse"] == pyiceberg["warehouse"] == "s3://bucket/west"


def test_a_unix_socket_is_refused_since_spark_has_no_way_to_it() -> None:
    with pytest.raises(ConfigError, match="has no host"):
        shared_catalog("postgresql://walship@/west?host=/run/postgresql", "file:///x")


def test_what_is_configured_wins_and_one_host_keeps_it_in_sqlite() -> None:
    given = {"spark": {"type": "rest"}, "pyiceberg": {"type": "rest"}}
    shared = {
        "cluster": {"name": "west"},
        "ledger": {"url": "postgresql://u@db/west?sslmode=require"},
        "catalog": given,
    }
    assert configured_catalog(configuration.load(None, shared, {})).spark == {"type": "rest"}
    alone = configuration.load(None, {"cluster": {"name": "west", "data_dir": "/data"}}, {})
    assert configured_catalog(alone).pyiceberg["uri"].startswith("sqlite:////data/catalog.db")
    elsewhere = configuration.load(
        None, {"cluster": {"name": "west", "data_dir": "/data"}, "catalog": {"warehouse": "s3://b/w"}}, {}
    )
    assert configured_catalog(elsewhere).spark["warehouse"] == "s3://b/w"


def test_a_catalogs_server_that_has_vanished_is_noticed_as_the_ledgers_is() -> None:
    _, pyiceberg = shared_catalog("postgresql://walship@db/west?connect_timeout=3", "file:///x")
    query = make_url(pyiceberg["uri"]).query
    ledger = _postgresql_arguments(make_url("postgresql://walship@db/west"), 1.0)
    names = ("keepalives_idle", "keepalives_interval", "keepalives_count", "tcp_user_timeout")
    assert {name: query[name] for name in names} == {name: str(ledger[name]) for name in names}
    assert query["connect_timeout"] == "3", "as the address has it"
