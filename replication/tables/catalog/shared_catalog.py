"""The default catalog of a cluster whose ledger is in PostgreSQL: the same database, in a schema of its own.

Spark uses it by JDBC, PyIceberg by SQLAlchemy, with the same settings.
"""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlencode

import sqlalchemy as sa
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import OperationalError, ProgrammingError

from replication.errors import ConfigError, CoordinationError

SCHEMA = "walship_catalog"
_ADVISORY_KEY = 0x77616C74
_JDBC_KEEPS = ("sslmode", "sslrootcert", "connect_timeout")
#: As the ledger's connections: one whose other end is silent for longer than 15 seconds is closed.
_CLIENT = {
    "connect_timeout": "10",
    "keepalives_idle": "5",
    "keepalives_interval": "5",
    "keepalives_count": "2",
    "tcp_user_timeout": "15000",
}
_JDBC_NAMES = {"connect_timeout": "connectTimeout"}


def shared_catalog(ledger_url: str, warehouse: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return the properties of the catalog beside a PostgreSQL ledger: for Spark, and for PyIceberg.

    Raises:
        ConfigError: JDBC cannot use the address.
    """
    url = make_url(ledger_url).set(drivername="postgresql+psycopg")
    host = url.host or url.query.get("host")
    if not isinstance(host, str) or host.startswith("/"):
        raise ConfigError(
            "the ledger's address has no host, so Spark cannot reach the catalog",
            "Write postgresql://user@host:port/database in ledger.url, or set [catalog.spark] and [catalog.pyiceberg]",
        )
    port = url.port or int(str(url.query.get("port", "5432")))
    options = {_JDBC_NAMES.get(key, key): str(url.query[key]) for key in _JDBC_KEEPS if key in url.query}
    shown = f"[{host}]" if ":" in host else host
    query = urlencode({"currentSchema": SCHEMA, "tcpKeepAlive": "true", "socketTimeout": "60", **options})
    spark = {
        "type": "jdbc",
        "uri": f"jdbc:postgresql://{shown}:{port}/{url.database}?{query}",
        "jdbc.schema-version": "V1",
        "warehouse": warehouse,
        "cache-enabled": "false",
    }
    if url.username:
        spark["jdbc.user"] = url.username
    if url.password:
        spark["jdbc.password"] = str(url.password)
    pyiceberg = {
        "type": "sql",
        "uri": _in_schema(url).render_as_string(hide_password=False),
        "warehouse": warehouse,
        "pool_pre_ping": "true",
    }
    return spark, pyiceberg


def make_schema(uri: str, fill: Callable[[], None]) -> None:
    """Create the catalog's schema if it is missing, and its tables with ``fill``. Only one host at a time does so.

    Raises:
        ConfigError: the user may not create it.
        CoordinationError: the database cannot be reached.
    """
    engine = sa.create_engine(uri, poolclass=sa.NullPool)
    try:
        with engine.begin() as connection:
            if connection.exec_driver_sql(f"SELECT to_regclass('{SCHEMA}.iceberg_tables')").scalar():
                return
        with engine.connect() as alone:  # the lock ends with this session
            alone.exec_driver_sql(f"SELECT pg_advisory_lock({_ADVISORY_KEY})")
            with engine.begin() as connection:
                connection.exec_driver_sql(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}")
            fill()
    except ProgrammingError as error:
        raise ConfigError(
            f"the schema {SCHEMA} cannot be created in the ledger's database: {error.orig}",
            "Allow the ledger's user to create it, or set [catalog.spark] and [catalog.pyiceberg]",
        ) from None
    except OperationalError as error:
        what = f"the catalog's database cannot be reached: {error.orig}"
        raise CoordinationError(what, "It is tried again") from None
    finally:
        engine.dispose()


def _in_schema(url: URL) -> URL:
    options = url.query.get("options", "")
    kept = options if isinstance(options, str) else " ".join(options)
    own = {name: value for name, value in _CLIENT.items() if name not in url.query}
    return url.update_query_dict({**own, "options": f"{kept} -csearch_path={SCHEMA}".strip()})
