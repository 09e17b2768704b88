"""The SQL tables of sending: peers, rules and where they begin, progress, held tables; and grants."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    String,
    Table,
    Text,
    UniqueConstraint,
    false,
    true,
)

from replication.ledger.sql.schema.metadata import KEY, id_column, metadata

peers = Table(
    "peers",
    metadata,
    Column("name", String, primary_key=True),
    Column("zookeepers", Text, nullable=False),
    Column("cluster", Text, nullable=False),
    Column("paused", Boolean, nullable=False, server_default=false()),
    Column("rate", BigInteger, nullable=False, server_default="0"),  # bytes per second, 0: no limit
)

rules = Table(
    "rules",
    metadata,
    id_column(),
    Column("peer", String, ForeignKey("peers.name"), nullable=False),
    Column("table_uuid", String, ForeignKey("tables.uuid"), nullable=False),
    Column("table_group", String, nullable=False),
    Column("remote_table", String, nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("phase", String, nullable=False, server_default="live"),
    Column("since", BigInteger, nullable=False, server_default="0"),
    Column("gaps", Text, nullable=False, server_default="[]"),  # [[begin, end, frames], …] that the peer never gets
    Column("with_properties", Boolean, nullable=False, server_default=true()),
    Column("every_group", Boolean, nullable=False, server_default=false()),
    UniqueConstraint("peer", "table_uuid", "table_group"),
    sqlite_autoincrement=True,
)

# rules for later tables
pattern_rules = Table(
    "pattern_rules",
    metadata,
    Column("peer", String, ForeignKey("peers.name", ondelete="CASCADE"), primary_key=True),
    Column("pattern", String, primary_key=True),
    Column("excluded", Text, nullable=False),  # [pattern, …]
    Column("grps", Text, nullable=False),  # [group, …]; none: all
    Column("with_properties", Boolean, nullable=False),
)

# how far the streams of an ended rule were at the peer; deleted when the same (table, group, cluster) is enabled again
ended_rules = Table(
    "ended_rules",
    metadata,
    Column("cluster", Text, primary_key=True),
    Column("table_uuid", String, primary_key=True),
    Column("table_group", String, primary_key=True),
    Column("generation", BigInteger, nullable=False),
    Column("at", BigInteger, nullable=False),
    Column("positions", Text, nullable=False),  # {wal: first sequence that the peer lacks}
    Column("gaps", Text, nullable=False),
)

# the first sequence a rule requires, per WAL that had its stream when the rule began; never changes
required_from = Table(
    "required_from",
    metadata,
    Column("rule_id", KEY, ForeignKey("rules.id", ondelete="CASCADE"), primary_key=True),
    Column("wal", Text, primary_key=True),
    Column("sequence", BigInteger, nullable=False),
)

# files written here for BOOTSTRAPPING rules; each is retired when the peer has applied it
bootstraps = Table(
    "bootstraps",
    metadata,
    Column("file_id", KEY, ForeignKey("files.id", ondelete="CASCADE"), primary_key=True),
    Column("table_uuid", String, ForeignKey("tables.uuid"), nullable=False),
    Column("generation", BigInteger, nullable=False),
)

# where a rule begins in a file older than the rule; in files without a row it begins at the header's end
rule_begins = Table(
    "rule_begins",
    metadata,
    Column("file_id", KEY, ForeignKey("files.id", ondelete="CASCADE"), primary_key=True),
    Column("rule_id", KEY, ForeignKey("rules.id", ondelete="CASCADE"), primary_key=True),
    Column("begin", BigInteger, nullable=False),
)

progress = Table(
    "progress",
    metadata,
    Column("file_id", KEY, ForeignKey("files.id", ondelete="CASCADE"), primary_key=True),
    Column("peer", String, ForeignKey("peers.name", ondelete="CASCADE"), primary_key=True),
    Column("shipped", Text, nullable=False),
    Column("applied", BigInteger, nullable=False),
    Column("commit", BigInteger, nullable=False),
    Column("error", Text, nullable=False),
    Column("losses", BigInteger, nullable=False, server_default="0"),  # see PeerProgress
)

# the latest attempt of each reporter at a peer; shown by status
attempts = Table(
    "attempts",
    metadata,
    Column("peer", String, ForeignKey("peers.name", ondelete="CASCADE"), primary_key=True),
    Column("host", String, primary_key=True),
    Column("work", String, primary_key=True),
    Column("failures", BigInteger, nullable=False),
    Column("total", BigInteger, nullable=False),
    Column("next_at", BigInteger, nullable=False),
    Column("at", BigInteger, nullable=False),
    Column("error", Text, nullable=False),
)

held_tables = Table(
    "held_tables",
    metadata,
    Column("peer", String, ForeignKey("peers.name", ondelete="CASCADE"), primary_key=True),
    Column("table_uuid", String, primary_key=True),
    Column("host", String, primary_key=True),
    Column("reason", Text, nullable=False),
    Column("since", BigInteger, nullable=False),
)

# ranges of a file that hold only frames of one withheld table; other tables need not wait for them
withheld = Table(
    "withheld",
    metadata,
    Column("file_id", KEY, ForeignKey("files.id", ondelete="CASCADE"), primary_key=True),
    Column("table_uuid", String, primary_key=True),
    Column("ranges", Text, nullable=False),
)

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
