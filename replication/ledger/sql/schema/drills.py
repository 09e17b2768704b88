"""The SQL table of drills."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Float, String, Table, Text

from replication.ledger.sql.schema.metadata import metadata

drills = Table(
    "drills",
    metadata,
    Column("id", String, primary_key=True),
    Column("host", String, nullable=False),
    Column("owner", String, nullable=False),
    Column("begun", BigInteger, nullable=False),
    Column("until", BigInteger, nullable=False),
    Column("instant", BigInteger, nullable=False),
    Column("ended", BigInteger, nullable=False),
    Column("passed", Boolean, nullable=False),
    Column("why", Text, nullable=False),
    Column("rpo_s", Float),
    Column("rto_s", Float),
    Column("kept_until", BigInteger, nullable=False),
    Column("report", Text, nullable=False),
    Column("scheduled", Boolean, nullable=False),
)
