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
    Text,
    UniqueConstraint,
    false,
)

from replication.ledger.sql.schema.metadata import KEY, id_column, partial_index, primary, required, table

#: Tables of facts: what was written, sent, landed and applied. Every other write is a decision (``Ledger.decided``).
FACTS = frozenset(
    ("batches", "checkpoints", "claims", "clocks", "counters", "duplicates", "files", "folds", "last_seen", "meta")
    + ("notices", "positions", "progress", "received", "samples", "slots", "sources", "streams", "touched", "writers")
)

meta = table("meta", Column("name", String, primary_key=True), Column("value", Text, nullable=False))

# Values that only grow. Global: term, closed, generation, replay_epoch, seen, retired_bytes, definitions, rules.
# Per table: aged, purged. Per host: assigned. Per peer and slot: last_seen. Per source cluster: retired.
counters = table("counters", Column("name", String, primary_key=True), Column("value", BigInteger, nullable=False))

# the newest known term of each other cluster, with its random nonce
term_histories = table(
    "term_histories",
    Column("cluster", Text, primary_key=True),
    Column("term", BigInteger, nullable=False),
    Column("nonce", String, nullable=False),
)

slots = table("slots", Column("slot", String, primary_key=True), Column("next", BigInteger, nullable=False))

tables = table(
    "tables",
    Column("uuid", String, primary_key=True),
    Column("name", String, nullable=False),
    Column("dropped", Boolean, nullable=False, server_default=false()),
    Column("dropped_at", BigInteger, nullable=False, server_default="0"),
    Column("spec", Text, nullable=False),
    partial_index("tables_name", "name", "NOT dropped", unique=True),
)

# By hash and table: a version that a peer teaches for its own table does not stand for that of another table.
schemas = table(
    "schemas",
    Column("hash", LargeBinary, primary_key=True),
    Column("table_uuid", String, primary_key=True, index=True),
    Column("table_group", String, nullable=False),
    Column("body", LargeBinary, nullable=False),
)

files = table(
    "files",
    id_column(),
    Column("file", Text, nullable=False, unique=True),
    Column("kind", String, nullable=False),
    Column("host", String, nullable=False, index=True),
    Column("path", Text, nullable=False),
    Column("length", BigInteger, nullable=False),
    Column("closed_length", BigInteger, nullable=False, server_default="-1"),  # -1 while OPEN
    Column("applied", BigInteger, nullable=False),
    Column("commit_hi", BigInteger, nullable=False, server_default="0"),
    *required(String, "boot", "writer"),
    Column("source", Text),
    Column("peer", String, nullable=False, server_default=""),  # of bootstraps written here
    Column("created", BigInteger, nullable=False),
    Index("files_commit", "commit_hi"),
    partial_index("files_pending", "id", "applied < length"),
    partial_index("files_unregistered", "id", "closed_length > length"),
    sqlite_autoincrement=True,
)

# gauge values of about the last hour, for forecasts
samples = table(
    "samples",
    Column("gauge", String, primary_key=True),
    Column("at", BigInteger, primary_key=True),
    Column("value", BigInteger, nullable=False),
)

streams = table(
    "streams",
    id_column(),
    Column("wal", Text, nullable=False),
    Column("table_uuid", String, nullable=False),
    Column("table_group", String, nullable=False),
    # an upper bound of the commit times of claimed frames whose files are retired, 0 without any
    Column("retired_hi", BigInteger, nullable=False, server_default="0"),
    UniqueConstraint("wal", "table_uuid", "table_group"),
    Index("streams_table", "table_uuid", "retired_hi"),
    sqlite_autoincrement=True,
)

# Sequences [seq_begin, seq_end) of a stream, found at [begin, end) of a file; file_id is NULL once the file is retired.
# A row covers one registration until it is applied, so that "applied" stays exact; then adjacent rows are joined.
claims = table(
    "claims",
    id_column(),
    Column("file_id", KEY, ForeignKey("files.id")),
    Column("stream_id", KEY, ForeignKey("streams.id"), nullable=False),
    *required(BigInteger, "seq_begin", "seq_end", "begin", "end"),
    *required(LargeBinary, "previous", "last"),
    Column("divergent", Boolean, nullable=False, server_default=false()),  # not claimed: another history
    Index("claims_sequence", "stream_id", "seq_end"),
    Index("claims_file", "file_id", "end"),
)

duplicates = table(
    "duplicates",
    id_column(),
    Column("file_id", KEY, ForeignKey("files.id", ondelete="CASCADE"), nullable=False),
    Column("stream_id", KEY, ForeignKey("streams.id"), nullable=False),
    *required(BigInteger, "seq_begin", "seq_end", "begin", "end"),
    Index("duplicates_file", "file_id", "end"),
    Index("duplicates_sequence", "stream_id", "seq_end"),
)

sources = table(
    "sources",
    id_column(),
    Column("file", Text, nullable=False, unique=True),
    Column("term", BigInteger, nullable=False, server_default="0"),
    Column("losses", BigInteger, nullable=False, server_default="0"),  # how often received ranges were salvaged
    sqlite_autoincrement=True,
)

# the highest role epoch per cluster that ships here
epochs = table("epochs", Column("source", Text, primary_key=True), Column("epoch", BigInteger, nullable=False))

successions = table(
    "successions",
    Column("origin", Text, primary_key=True),
    Column("epoch", BigInteger, primary_key=True),
    Column("successor", Text, nullable=False),
    Column("content", LargeBinary, nullable=False),  # a Succession, compressed
)

# [source_begin, source_end) of a peer's file, at [begin, end) of a landing file; joined once applied, as in claims
received = table(
    "received",
    id_column(),
    Column("source_id", KEY, ForeignKey("sources.id"), nullable=False),
    Column("file_id", KEY, ForeignKey("files.id")),
    *required(BigInteger, "begin", "end", "source_begin", "source_end"),
    Index("received_source", "source_id", "source_end"),
    Index("received_file", "file_id", "end"),
)

batches = table(
    "batches",
    *primary(String, "table_uuid", "batch_id", "table_group"),
    Column("part", Integer, primary_key=True),
    Column("parts", Integer, nullable=False),
    Column("sha256", LargeBinary, nullable=False),
    Column("wal", Text, nullable=False),
    *required(BigInteger, "sequence", "end", "at"),
    Index("batches_age", "table_uuid", "at"),
)

# WALs with rows that were acked under a batch id with different rows
batch_conflicts = table(
    "batch_conflicts",
    *primary(String, "table_uuid", "batch_id"),
    Column("wal", Text, primary_key=True),
    Column("at", BigInteger, nullable=False),
)

# the writer that appends under a batch id, until the batch is complete; see Batches.hold
batch_holds = table(
    "batch_holds",
    *primary(String, "table_uuid", "batch_id"),
    Column("writer", String, nullable=False),
)

routes = table(
    "routes",
    Column("source", Text, primary_key=True),
    *primary(String, "table_uuid", "table_group"),
    Column("generation", BigInteger, nullable=False),
    Column("closed", Boolean, nullable=False, server_default=false()),
    Column("phase", String, nullable=False, server_default="live"),  # of the sender's rule
    Column("required_from", Text, nullable=False),  # RequiredFrom as JSON
    Column("acknowledged", Text, nullable=False),  # {wal: [[begin, end], …]}
    Column("carried", Text, nullable=False, server_default="[]"),  # [[origin, [cluster, …], silent since, awaits], …]
)

# origins that a source's routes ever carried: frames on the way may be older than its newest declaration
carriers = table(
    "carriers",
    *primary(Text, "source", "origin"),
)

# sequences lost with a salvaged own file; nothing waits for them, and they may land again
acknowledged = table(
    "acknowledged",
    id_column(),
    Column("stream_id", KEY, ForeignKey("streams.id"), nullable=False),
    *required(BigInteger, "seq_begin", "seq_end"),
    Column("file", Text, nullable=False),
    Column("at", BigInteger, nullable=False),  # when it was salvaged
)

# when each cluster that sends to this one was last seen
last_seen = table("last_seen", Column("source", Text, primary_key=True), Column("at", BigInteger, nullable=False))

positions = table(
    "positions",
    Column("file_id", KEY, ForeignKey("files.id", ondelete="CASCADE"), primary_key=True),
    Column("table_uuid", String, primary_key=True),
    Column("applied", BigInteger, nullable=False),
)

checkpoints = table(
    "checkpoints",
    Column("table_uuid", String, primary_key=True),
    *required(BigInteger, "epoch", "commit", "snapshot"),
    Column("positions", Text, nullable=False),
)

quarantined = table(
    "quarantined",
    Column("file", Text, primary_key=True),
    Column("begin", BigInteger, primary_key=True),
    Column("end", BigInteger, nullable=False),
    Column("table_uuid", String, nullable=False),
    *required(Text, "reason", "copy"),
    Column("at", BigInteger, nullable=False),
    Column("discarded", BigInteger, nullable=False, server_default="0"),  # when a person discarded it, 0 if not
    Column("succession", Text, nullable=False, server_default=""),  # that makes it a lost write
    Column("held", Text, nullable=False),  # [[stream id, sequence begin, end], …] that hold back replicated time
)

folds = table(
    "folds",
    Column("table_uuid", String, primary_key=True),
    *required(BigInteger, "upto", "changes_snapshot", "at"),
)

writers = table(
    "writers",
    Column("writer", String, primary_key=True),
    Column("host", String, nullable=False),
    Column("pid", BigInteger, nullable=False),
    Column("boot", String, nullable=False),
    *required(BigInteger, "role_epoch", "floor"),
)

notices = table(
    "notices",
    Column("origin", Text, primary_key=True),
    Column("closed", BigInteger, primary_key=True),
    Column("payload", LargeBinary, nullable=False),
    Column("streams", BigInteger, nullable=False),  # how many it lists
)

# origins with commit times far ahead of a local clock: the newest one, and when it was seen
clocks = table(
    "clocks",
    Column("origin", Text, primary_key=True),
    *required(BigInteger, "commit", "at"),
)

# derived tables; ``pending`` is a batch that may or may not be written
derivations = table(
    "derivations",
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
commit_stores = table("commit_stores", Column("name", String, primary_key=True))

commit_sequences = table(
    "commit_sequences",
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
    *required(BigInteger, "created", "changed"),
)

drills = table(
    "drills",
    Column("id", String, primary_key=True),
    *required(String, "host", "owner"),
    *required(BigInteger, "begun", "until", "instant", "ended"),
    Column("passed", Boolean, nullable=False),
    Column("why", Text, nullable=False),
    Column("rpo_s", Float),
    Column("rto_s", Float),
    Column("kept_until", BigInteger, nullable=False),
    Column("report", Text, nullable=False),
    Column("scheduled", Boolean, nullable=False),
)
