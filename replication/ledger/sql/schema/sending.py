"""The SQL tables of sending: peers, rules and where they begin, progress, held tables; and grants."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, ForeignKey, String, Text, UniqueConstraint, false, true

from replication.ledger.sql.schema.metadata import KEY, id_column, primary, required, table

peers = table(
    "peers",
    Column("name", String, primary_key=True),
    *required(Text, "zookeepers", "cluster"),
    Column("paused", Boolean, nullable=False, server_default=false()),
    Column("rate", BigInteger, nullable=False, server_default="0"),  # bytes per second, 0: no limit
)

rules = table(
    "rules",
    id_column(),
    Column("peer", String, ForeignKey("peers.name"), nullable=False),
    Column("table_uuid", String, ForeignKey("tables.uuid"), nullable=False),
    *required(String, "table_group", "remote_table"),
    Column("generation", BigInteger, nullable=False),
    Column("phase", String, nullable=False, server_default="live"),
    Column("since", BigInteger, nullable=False, server_default="0"),
    Column("gaps", Text, nullable=False, server_default="[]"),  # [[begin, end, frames], …] that the peer never gets
    Column("ended", Text, nullable=False),  # [file, …]: earlier WALs of its slot had ended, see RequiredFrom
    Column("with_properties", Boolean, nullable=False, server_default=true()),
    Column("every_group", Boolean, nullable=False, server_default=false()),
    UniqueConstraint("peer", "table_uuid", "table_group"),
    sqlite_autoincrement=True,
)

# rules for later tables
pattern_rules = table(
    "pattern_rules",
    Column("peer", String, ForeignKey("peers.name", ondelete="CASCADE"), primary_key=True),
    Column("pattern", String, primary_key=True),
    Column("excluded", Text, nullable=False),  # [pattern, …]
    Column("grps", Text, nullable=False),  # [group, …]; none: all
    Column("with_properties", Boolean, nullable=False),
)

# how far the streams of an ended rule were at the peer; deleted when the same (table, group, cluster) is enabled again
ended_rules = table(
    "ended_rules",
    Column("cluster", Text, primary_key=True),
    *primary(String, "table_uuid", "table_group"),
    *required(BigInteger, "generation", "at"),
    Column("positions", Text, nullable=False),  # {wal: first sequence that the peer lacks}
    Column("gaps", Text, nullable=False),
)

# the first sequence a rule requires, per WAL that had its stream when the rule began, and may grow; never changes
required_from = table(
    "required_from",
    Column("rule_id", KEY, ForeignKey("rules.id", ondelete="CASCADE"), primary_key=True),
    Column("wal", Text, primary_key=True),
    Column("sequence", BigInteger, nullable=False),
)

# files written here for BOOTSTRAPPING rules; each is retired when the peer has applied it
bootstraps = table(
    "bootstraps",
    Column("file_id", KEY, ForeignKey("files.id", ondelete="CASCADE"), primary_key=True),
    Column("table_uuid", String, ForeignKey("tables.uuid"), nullable=False),
    Column("generation", BigInteger, nullable=False),
)

# where a rule begins in a file older than the rule; in files without a row it begins at the header's end
rule_begins = table(
    "rule_begins",
    Column("file_id", KEY, ForeignKey("files.id", ondelete="CASCADE"), primary_key=True),
    Column("rule_id", KEY, ForeignKey("rules.id", ondelete="CASCADE"), primary_key=True),
    Column("begin", BigInteger, nullable=False),
)

progress = table(
    "progress",
    Column("file_id", KEY, ForeignKey("files.id", ondelete="CASCADE"), primary_key=True),
    Column("peer", String, ForeignKey("peers.name", ondelete="CASCADE"), primary_key=True),
    Column("shipped", Text, nullable=False),
    *required(BigInteger, "applied", "commit"),
    Column("error", Text, nullable=False),
    Column("losses", BigInteger, nullable=False, server_default="0"),  # see PeerProgress
)

# the latest attempt of each reporter at a peer; shown by status
attempts = table(
    "attempts",
    Column("peer", String, ForeignKey("peers.name", ondelete="CASCADE"), primary_key=True),
    *primary(String, "host", "work"),
    *required(BigInteger, "failures", "total", "next_at", "at"),
    Column("error", Text, nullable=False),
)

held_tables = table(
    "held_tables",
    Column("peer", String, ForeignKey("peers.name", ondelete="CASCADE"), primary_key=True),
    *primary(String, "table_uuid", "host"),
    Column("reason", Text, nullable=False),
    Column("since", BigInteger, nullable=False),
)

# ranges of a file that hold only frames of one withheld table; other tables need not wait for them
withheld = table(
    "withheld",
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
grants = table(
    "grants",
    Column("name", String, primary_key=True),
    *(Column(name, kind, nullable=False) for name, kind in _GRANT),
    Column("at", BigInteger, nullable=False),
    Column("asked", Boolean, nullable=False),
)

invitations = table(
    "invitations",
    Column("digest", String, primary_key=True),  # SHA-256 of the secret
    Column("name", String, nullable=False),
    *(Column(name, kind, nullable=False) for name, kind in _GRANT),
    Column("expires", BigInteger, nullable=False),
)
