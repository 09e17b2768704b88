"""``python -m tests.integration.writing DIRECTORY RUN``: a writer process to kill; prints its keys once they are acked.

Four threads: two append row by row, one batches with ids, one large upserts through futures. Small WALs, so that rolls
happen.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
from collections import deque
from concurrent.futures import Future
from pathlib import Path
from uuid import UUID, uuid4

import pyarrow as pa
import structlog

from replication.coordination.paths import MemberKind
from replication.core.definition.define import typed_table
from replication.core.ids import ClusterId
from replication.core.position import Position
from replication.ledger.base import Ledger
from replication.ledger.sql.ledger import initialise, open_ledger
from replication.settings import WriterSection
from replication.writer.wal.wal_series import Place
from replication.writer.writer import Writer
from tests.fakes.coordination import MemoryEnsemble

CLUSTER = ClusterId("east", UUID(int=9))
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.binary())])
TABLE = typed_table("t.rows", SCHEMA, ["k"], uuids=iter(uuid4, None))
STRIDE = 1 << 40  # each thread of each run has keys of its own
BATCH_ROWS = 700


def ledger(directory: str) -> Ledger:
    """The ledger of a directory, made at need."""
    url = f"{directory}/ledger.db"
    initialise(url, CLUSTER)
    return open_ledger(url)


def connect(directory: str, ledger: Ledger, ensemble: MemoryEnsemble, **settings: object) -> Writer:
    """A writer over real files and a real ledger."""
    coordination = ensemble.connect("/walship/east")
    coordination.establish(CLUSTER, "0")
    coordination.enrol(MemberKind.WORKERS, "h0", {})
    chosen = WriterSection.model_validate({"wal_bytes_max": 1 << 20, **settings})
    return Writer(ledger, coordination, Place(f"{directory}/wal", "h0"), chosen)


def batch(begin: int, count: int = BATCH_ROWS) -> pa.Table:
    """Rows with keys from ``begin`` on and values that follow from them."""
    keys = range(begin, begin + count)
    return pa.table({"k": keys, "v": [b"%d" % k * 5 for k in keys]}, schema=SCHEMA)


def main(directory: str, run: int) -> None:
    """Write until killed."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    spec = TABLE
    book = ledger(directory)
    known = [table for table in book.tables.all() if table.name == spec.name]
    if known:
        spec = known[0]
    else:
        book.tables.create(spec)
    writer = connect(directory, book, MemoryEnsemble())

    def acked(begin: int, count: int) -> None:
        os.write(1, f"{begin} {count}\n".encode())  # one call: whole or not at all

    def rows(begin: int) -> None:
        for key in itertools.count(begin):
            writer.upsert(spec, batch(key, 1).to_pylist())
            acked(key, 1)

    def with_ids(begin: int) -> None:
        for key in itertools.count(begin, BATCH_ROWS):
            writer.upsert(spec, batch(key), batch_id=str(key))
            acked(key, BATCH_ROWS)

    def large(begin: int) -> None:
        waiting: deque[tuple[int, Future[Position]]] = deque()
        for key in itertools.count(begin, BATCH_ROWS):
            waiting.append((key, writer.upsert_async(spec, batch(key))))
            if len(waiting) > 4:
                done, future = waiting.popleft()
                future.result()
                acked(done, BATCH_ROWS)

    first = run * 8 * STRIDE
    work = [rows, rows, with_ids, large]
    threads = [threading.Thread(target=each, args=(first + n * STRIDE,)) for n, each in enumerate(work)]
    for thread in threads:
        thread.start()
    os.write(1, b"ready\n")
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    Path(sys.argv[1]).mkdir(exist_ok=True)
    main(sys.argv[1], int(sys.argv[2]))
