"""The SQL tables of local state: tables and their schemas, files, streams, claims, received ranges, applied positions.

Also those of commit sequences and drills. The tables of sending are in ``sending.py``, common parts in ``metadata.py``.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    String,
    Table,
    Text,
    UniqueConstraint,
    false,
)

from replication.ledger.sql.schema.metadata import KEY, id_column, metadata, partial_index

#: Tables of facts: what was written, sent, landed and applied. Every other write is a decision (``Ledger.decided``).
FACTS = frozenset(
    ("batches", "checkpoints", "claims", "clocks", "counters", "duplicates", "files", "folds", "last_seen", "meta")
    + ("notices", "positions", "progress", "received", "samples", "slots", "sources", "streams", "touched", "writers")
)

meta = Table("meta", metadata, Column("name", String, primary_key=True), Column("value", Text, nullable=False))

# Values that only grow. Global: term, closed, generation, replay_epoch, seen, retired_bytes, definitions, rules.
# Per table: aged, purged. Per host: assigned. Per peer and slot: last_seen. Per source cluster: retired.
counters = Table(
    "counters", metadata, Column("name", String, primary_key=True), Column("value", BigInteger, nullable=False)
)

# the newest known term of each other cluster, with its random nonce
term_histories = Table(
    "term_histories",
    metadata,
    Column("cluster", Text, primary_key=True),
    Column("term", BigInteger, nullable=False),
    Column("nonce", String, nullable=False),
)

slots = Table("slots", metadata, Column("slot", String, primary_key=True), Column("next", BigInteger, nullable=False))

tables = Table(
    "tables",
    metadata,
    Column("uuid", String, primary_key=True),
    Column("name", String, nullable=False),
    Column("dropped", Boolean, nullable=False, server_default=false()),
    Column("dropped_at", BigInteger, nullable=False, server_default="0"),
    Column("spec", Text, nullable=False),
    partial_index("tables_name", "name", "NOT dropped", unique=True),
)

# By hash and table: a version that a peer teaches for its own table does not stand for that of another table.
schemas = Table(
    "schemas",
    metadata,
    Column("hash", LargeBinary, primary_key=True),
    Column("table_uuid", String, primary_key=True, index=True),
    Column("table_group", String, nullable=False),
    Column("body", LargeBinary, nullable=False),
)

files = Table(
    "files",
    metadata,
    id_column(),
    Column("file", Text, nullable=False, unique=True),
    Column("kind", String, nullable=False),
    Column("host", String, nullable=False, index=True),
    Column("path", Text, nullable=False),
    Column("length", BigInteger, nullable=False),
    Column("closed_length", BigInteger, nullable=False, server_default="-1"),  # -1 while OPEN
    Column("applied", BigInteger, nullable=False),
    Column("commit_hi", BigInteger, nullable=False, server_default="0"),
    Column("boot", String, nullable=False),
    Column("writer", String, nullable=False),
    Column("source", Text),
    Column("peer", String, nullable=False, server_default=""),  # of bootstraps written here
    Column("created", BigInteger, nullable=False),
    Index("files_commit", "commit_hi"),
    partial_index("files_pending", "id", "applied < length"),
    partial_index("files_unregistered", "id", "closed_length > length"),
    sqlite_autoincrement=True,
)

# gauge values of about the last hour, for forecasts
samples = Table(
    "samples",
    metadata,
    Column("gauge", String, primary_key=True),
    Column("at", BigInteger, primary_key=True),
    Column("value", BigInteger, nullable=False),
)

streams = Table(
    "streams",
    metadata,
    id_column(),
    Column("wal", Text, nullable=False),
    Column("table_uuid", String, nullable=False, index=True),
    Column("table_group", String, nullable=False),
    UniqueConstraint("wal", "table_uuid", "table_group"),
    sqlite_autoincrement=True,
)

# Sequences [seq_begin, seq_end) of a stream, found at [begin, end) of a file; file_id is NULL once the file is retired.
# A row covers one registration until it is applied, so that "applied" stays exact; then adjacent rows are joined.
claims = Table(
    "claims",
    metadata,
    id_column(),
    Column("file_id", KEY, ForeignKey("files.id")),
    Column("stream_id", KEY, ForeignKey("streams.id"), nullable=False),
    Column("seq_begin", BigInteger, nullable=False),
    Column("seq_end", BigInteger, nullable=False),
    Column("begin", BigInteger, nullable=False),
    Column("end", BigInteger, nullable=False),
    Column("previous", LargeBinary, nullable=False),
    Column("last", LargeBinary, nullable=False),
    Column("divergent", Boolean, nullable=False, server_default=false()),  # not claimed: another history
    Index("claims_sequence", "stream_id", "seq_end"),
    Index("claims_file", "file_id", "end"),
)

duplicates = Table(
    "duplicates",
    metadata,
    id_column(),
    Column("file_id", KEY, ForeignKey("files.id", ondelete="CASCADE"), nullable=False),
    Column("stream_id", KEY, ForeignKey("streams.id"), nullable=False),
    Column("seq_begin", BigInteger, nullable=False),
    Column("seq_end", BigInteger, nullable=False),
    Column("begin", BigInteger, nullable=False),
    Column("end", BigInteger, nullable=False),
    Index("duplicates_file", "file_id", "end"),
    Index("duplicates_sequence", "stream_id", "seq_end"),
)

sources = Table(
    "sources",
    metadata,
    id_column(),
    Column("file", Text, nullable=False, unique=True),
    Column("term", BigInteger, nullable=False, server_default="0"),
    Column("losses", BigInteger, nullable=False, server_default="0"),  # how often received ranges were salvaged
    sqlite_autoincrement=True,
)

# the highest role epoch per cluster that ships here
epochs = Table(
    "epochs", metadata, Column("source", Text, primary_key=True), Column("epoch", BigInteger, nullable=False)
)

successions = Table(
    "successions",
    metadata,
    Column("origin", Text, primary_key=True),
    Column("epoch", BigInteger, primary_key=True),
    Column("successor", Text, nullable=False),
    Column("content", LargeBinary, nullable=False),  # a Succession, compressed
)

# [source_begin, source_end) of a peer's file, at [begin, end) of a landing file; joined once applied, as in claims
received = Table(
    "received",
    metadata,
    id_column(),
    Column("source_id", KEY, ForeignKey("sources.id"), nullable=False),
    Column("file_id", KEY, ForeignKey("files.id")),
    Column("begin", BigInteger, nullable=False),
    Column("end", BigInteger, nullable=False),
    Column("source_begin", BigInteger, nullable=False),
    Column("source_end", BigInteger, nullable=False),
    Index("received_source", "source_id", "source_end"),
    Index("received_file", "file_id", "end"),
)

batches = Table(
    "batches",
    metadata,
    Column("table_uuid", String, primary_key=True),
    Column("batch_id", String, primary_key=True),
    Column("table_group", String, primary_key=True),
    Column("part", Integer, primary_key=True),
    Column("parts", Integer, nullable=False),
    Column("sha256", LargeBinary, nullable=False),
    Column("wal", Text, nullable=False),
    Column("sequence", BigInteger, nullable=False),
    Column("end", BigInteger, nullable=False),
    Column("at", BigInteger, nullable=False),
    Index("batches_age", "table_uuid", "at"),
)

# WALs with rows that were acked under a batch id with different rows
batch_conflicts = Table(
    "batch_conflicts",
    metadata,
    Column("table_uuid", String, primary_key=True),
    Column("batch_id", String, primary_key=True),
    Column("wal", Text, primary_key=True),
    Column("at", BigInteger, nullable=False),
)

# the writer that appends under a batch id, until the batch is complete; see Batches.hold
batch_holds = Table(
    "batch_holds",
    metadata,
    Column("table_uuid", String, primary_key=True),
    Column("batch_id", String, primary_key=True),
    Column("writer", String, nullable=False),
)

routes = Table(
    "routes",
    metadata,
    Column("source", Text, primary_key=True),
    Column("table_uuid", String, primary_key=True),
    Column("table_group", String, primary_key=True),
    Column("generation", BigInteger, nullable=False),
    Column("closed", Boolean, nullable=False, server_default=false()),
    Column("phase", String, nullable=False, server_default="live"),  # of the sender's rule
    Column("required_from", Text, nullable=False),  # {wal: first sequence}
    Column("acknowledged", Text, nullable=False),  # {wal: [[begin, end], …]}
    Column("carried", Text, nullable=False, server_default="[]"),  # [[origin, [cluster, …], silent since, awaits], …]
)

# origins that a source's routes ever carried: frames on the way may be older than its newest declaration
carriers = Table(
    "carriers",
    metadata,
    Column("source", Text, primary_key=True),
    Column("origin", Text, primary_key=True),
)

# sequences lost with a salvaged own file; nothing waits for them, and they may land again
acknowledged = Table(
    "acknowledged",
    metadata,
    id_column(),
    Column("stream_id", KEY, ForeignKey("streams.id"), nullable=False),
    Column("seq_begin", BigInteger, nullable=False),
    Column("seq_end", BigInteger, nullable=False),
    Column("file", Text, nullable=False),
    Column("at", BigInteger, nullable=False),  # when it was salvaged
)

# when each cluster that sends to this one was last seen
last_seen = Table(
    "last_seen", metadata, Column("source", Text, primary_key=True), Column("at", BigInteger, nullable=False)
)

positions = Table(
    "positions",
    metadata,
    Column("file_id", KEY, ForeignKey("files.id", ondelete="CASCADE"), primary_key=True),
    Column("table_uuid", String, primary_key=True),
    Column("applied", BigInteger, nullable=False),
)

checkpoints = Table(
    "checkpoints",
    metadata,
    Column("table_uuid", String, primary_key=True),
    Column("epoch", BigInteger, nullable=False),
    Column("commit", BigInteger, nullable=False),
    Column("snapshot", BigInteger, nullable=False),
    Column("positions", Text, nullable=False),
)

quarantined = Table(
    "quarantined",
    metadata,
    Column("file", Text, primary_key=True),
    Column("begin", BigInteger, primary_key=True),
    Column("end", BigInteger, nullable=False),
    Column("table_uuid", String, nullable=False),
    Column("reason", Text, nullable=False),
    Column("copy", Text, nullable=False),
    Column("at", BigInteger, nullable=False),
    Column("discarded", BigInteger, nullable=False, server_default="0"),  # when a person discarded it, 0 if not
    Column("succession", Text, nullable=False, server_default=""),  # that makes it a lost write
    Column("held", Text, nullable=False),  # [[stream id, sequence begin, end], …] that hold back replicated time
)

folds = Table(
    "folds",
    metadata,
    Column("table_uuid", String, primary_key=True),
    Column("upto", BigInteger, nullable=False),
    Column("changes_snapshot", BigInteger, nullable=False),
    Column("at", BigInteger, nullable=False),
)

writers = Table(
    "writers",
    metadata,
    Column("writer", String, primary_key=True),
    Column("host", String, nullable=False),
    Column("pid", BigInteger, nullable=False),
    Column("boot", String, nullable=False),
    Column("role_epoch", BigInteger, nullable=False),
    Column("floor", BigInteger, nullable=False),
)

notices = Table(
    "notices",
    metadata,
    Column("origin", Text, primary_key=True),
    Column("closed", BigInteger, primary_key=True),
    Column("payload", LargeBinary, nullable=False),
    Column("streams", BigInteger, nullable=False),  # how many it lists
)

# origins with commit times far ahead of a local clock: the newest one, and when it was seen
clocks = Table(
    "clocks",
    metadata,
    Column("origin", Text, primary_key=True),
    Column("commit", BigInteger, nullable=False),
    Column("at", BigInteger, nullable=False),
)

# derived tables; ``pending`` is a batch that may or may not be written
derivations = Table(
    "derivations",
    metadata,
    Column("table_uuid", String, ForeignKey("tables.uuid"), primary_key=True),
    Column("source_uuid", String, ForeignKey("tables.uuid"), nullable=False, index=True),
    Column("hook", String, nullable=False),
    Column("options", Text, nullable=False),  # {name: value}
    Column("names", Text, nullable=False),  # {uuid of a column of the source: its name for the hook}
    Column("version", String, nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("position", BigInteger, nullable=False),  # -1: compare the whole source again
    Column("pending", String, nullable=False, server_default=""),
    Column("pending_position", BigInteger, nullable=False, server_default="0"),
    Column("upto", BigInteger, nullable=False, server_default="0"),
    Column("at", BigInteger, nullable=False, server_default="0"),
    Column("error", Text, nullable=False, server_default=""),
    Column("error_since", BigInteger, nullable=False, server_default="0"),
)

# commit sequences, by the store that they are in
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
