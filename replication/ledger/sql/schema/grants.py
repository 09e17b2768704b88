"""The SQL tables of grants and invitations."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, String, Table, Text

from replication.ledger.sql.schema.metadata import metadata

_GRANT = (
    ("incarnation", String),
    ("patterns", Text),  # [name or pattern of tables, …]
    ("origins", Text),  # [name or pattern of clusters, …]
    ("defines", Boolean),
    ("made_by", Text),
)

# by the caller's name; of no patterns: everything is denied
grants = Table(
    "grants",
    metadata,
    Column("name", String, primary_key=True),
    *(Column(name, kind, nullable=False) for name, kind in _GRANT),
    Column("at", BigInteger, nullable=False),
    Column("asked", Boolean, nullable=False),
)

invitations = Table(
    "invitations",
    metadata,
    Column("digest", String, primary_key=True),  # SHA-256 of the secret
    Column("name", String, nullable=False),
    *(Column(name, kind, nullable=False) for name, kind in _GRANT),
    Column("expires", BigInteger, nullable=False),
)
