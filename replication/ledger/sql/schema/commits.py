"""The SQL tables of commit sequences."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, ForeignKey, String, Table, Text, false

from replication.ledger.sql.schema.metadata import metadata

commit_stores = Table("commit_stores", metadata, Column("name", String, primary_key=True))

commit_sequences = Table(
    "commit_sequences",
    metadata,
    Column("store", String, ForeignKey("commit_stores.name", ondelete="CASCADE"), primary_key=True),
    Column("urn", String, primary_key=True),
    Column("steps", Text, nullable=False),  # a line of JSON each
    Column("complete", Boolean, nullable=False),
    Column("done", BigInteger, nullable=False, server_default="0"),
    Column("failures", BigInteger, nullable=False, server_default="0"),
    Column("error", Text, nullable=False, server_default=""),
    Column("suspended", Boolean, nullable=False, server_default=false()),
    Column("owner", String, nullable=False, server_default=""),
    Column("leased_until", BigInteger, nullable=False, server_default="0"),
    Column("created", BigInteger, nullable=False),
    Column("changed", BigInteger, nullable=False),
)
