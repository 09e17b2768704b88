"""``python -m peer.verify.answering``: a process that answers one cluster's questions about tables.

The receiver starts one for each conversation and passes the bytes on. So a comparison takes neither the receiver's time
nor its memory. Standard input carries a JSON object (the configuration and the asker), then questions. Standard output
carries answers. Each message is preceded by its length in four bytes. The process ends with its standard input, so also
when its parent has died.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO
from uuid import UUID

import duckdb

from peer.replay_report import AWAITS, TAKING, ReplayReport
from peer.tables.read import Reader, earliest
from peer.verify.by_jobs import buckets_by_job
from peer.verify.digest import Reading, encode_buckets, open_reading
from peer.verify.messages import read, write
from replication import log
from replication.config import Config
from replication.core.definition.schema import TableSpec
from replication.core.grants import is_covered
from replication.core.routes.freshness import QUARANTINED, Replicated, named
from replication.errors import ReplicationError, RequestError, UnknownTableError
from replication.files.notifier import Notifier
from replication.ledger.base import Ledger
from replication.ledger.sql.ledger import open_ledger
from replication.link import questions as q
from replication.link.base import Reason, Refusal
from replication.retries import repeated_on
from replication.tables.pandas_later import load_pandas_later

_NICE = 10
_TRIES = 3


class ComparisonServer:
    """Answers questions about one cluster's tables. One thread uses it.

    Args:
        ledger: its ledger; the caller closes it.
        asker: name of the cluster that asks.
        spill: a folder for what does not fit into memory.
        tables: names and patterns of tables that it may ask about, beside those that it is sent.
    """

    def __init__(self, config: Config, ledger: Ledger, asker: str, spill: Path, tables: Sequence[str] = ("*",)) -> None:
        self._config = config
        self._ledger = ledger
        self._asker = asker
        self._spill = spill
        self._patterns = tables
        self._reader = Reader(config, ledger)
        self._reading: Reading | None = None
        self._worker = Notifier(str(config.wal_dir))

    def answers(self, raw: bytes) -> Iterator[bytes]:
        """The answers to a question; a refusal when it fails."""
        try:
            for answer in self._answers(q.decode_question(raw)):
                yield q.encode_answer(answer)
        except ReplicationError as error:
            yield q.encode_answer(Refusal(Reason.NOT_READY, error.what, error.hint))
        except (duckdb.Error, OSError) as error:
            what = str(error).strip().splitlines()[0]
            is_full = isinstance(error, duckdb.OutOfMemoryException)
            hint = "The memory must hold 2,048 of its rows, and does not" if is_full else "Try again"
            yield q.encode_answer(Refusal(Reason.NOT_READY, f"reading failed: {what}", hint))

    def about(self, table: UUID, name: str) -> q.About:
        """A table's definition, its replicated time, and the earliest time that it can be read as of."""
        spec = next(iter(self._tables(table)), None)
        if spec is None:
            return q.About(None, is_taken=any(spec.name == name for spec in self._ledger.tables.all()))
        self._worker.ask_closed_time()  # who asks waits for replicated time to pass
        rules = [rule for rule in self._ledger.rules.to(self._asker) if rule.table == table]
        times = self._ledger.time.replicated(table).values()
        slowest = min(times, key=lambda reached: reached.t, default=Replicated(0))
        return q.About(
            spec,
            tuple(rule.group for rule in rules),
            slowest.t,
            earliest(self._reader.catalog, self._ledger, spec),
            held=self._held(spec, slowest),
        )

    def _held(self, spec: TableSpec, slowest: Replicated) -> str:
        """Why a table's replicated time stays where it is; "" when it moves, as after a bootstrap that is applied."""
        report = ReplayReport.load(self._ledger.replay)
        why = report.held.get(spec.name, "") if report is not None else ""
        if why and why not in (AWAITS, TAKING):
            return why
        return named(slowest.held_by, {spec.uuid: spec.name}) if QUARANTINED in slowest.held_by else ""

    def open(self, ask: q.AskRead) -> Reading:
        """Open a reading, closing the one before, and hash all its rows.

        Raises:
            RequestError: the table cannot be read as of that time, or has another key.
            UnknownTableError: there is no such table.
        """
        found = next(iter(self._tables(ask.spec.uuid)), None)
        if found is None:
            raise UnknownTableError(f"there is no table {ask.spec.uuid}")
        if _key(ask.spec) != _key(found):  # which is shown as it is; of other columns only hashes are
            raise RequestError(f"{found.name} has another key on {self._config.cluster.name}")
        asked = {group.name for group in ask.spec.groups}
        own = (replace(group, members=()) for group in found.groups if group.name not in asked)
        return self._hashed(found, replace(ask.spec, name=found.name, groups=(*ask.spec.groups, *own)), ask)

    @repeated_on(duckdb.IOException, times=_TRIES)  # maintenance may delete a file just then
    def _hashed(self, found: TableSpec, spec: TableSpec, ask: q.AskRead) -> Reading:
        self.close()
        catalog, as_of = self._reader.catalog, None if ask.as_of == q.NOW else ask.as_of
        self._reading = reading = open_reading(catalog, spec, ask.groups, as_of, self._spill)
        if as_of is not None:  # else it would be of another moment
            reading.hashed = buckets_by_job(self._config, catalog, found, spec, ask.groups, as_of)
        reading.buckets()
        return reading

    def close(self) -> None:
        """Close the reading. Idempotent."""
        if self._reading is not None:
            self._reading.close()
            self._reading = None

    def _answers(self, question: q.Question) -> Iterator[q.Answer]:
        match question:
            case q.AskTables():
                yield q.TablesAnswer(frozenset(spec.uuid for spec in self._tables()))
            case q.AskTable(table, name):
                yield self.about(table, name)
            case q.AskRead():
                digest = self.open(question).digest()
                yield q.Whole(digest.rows, digest.content)
            case q.AskBuckets():
                yield q.Packed(encode_buckets(self._open().buckets()))
            case q.AskKeys(buckets):
                for batch in self._open().keys(buckets):
                    for piece in q.pieces(batch):
                        yield q.RowsAnswer(piece)
                yield q.End()

    def _tables(self, *only: UUID) -> list[TableSpec]:
        """The tables that the asker may ask about, or those of ``only``."""
        sent = {rule.table for rule in self._ledger.rules.to(self._asker)}
        every = [spec for spec in self._ledger.tables.all() if not only or spec.uuid in only]
        return [spec for spec in every if spec.uuid in sent or is_covered(spec.name, self._patterns)]

    def _open(self) -> Reading:
        if self._reading is None:
            raise UnknownTableError("no table is open", "Open one first")
        return self._reading


def _key(spec: TableSpec) -> list[UUID]:
    return [spec.by_name[name].uuid for name in spec.key]


def serve(incoming: BinaryIO, outgoing: BinaryIO) -> None:
    """Answer questions until ``incoming`` ends."""
    given = json.loads(read(incoming) or b"{}")
    config = Config.model_validate(given["config"])
    asked: queue.Queue[bytes] = queue.Queue(2)

    def take() -> None:
        while (raw := read(incoming)) is not None:
            asked.put(raw)
        os._exit(0)

    threading.Thread(target=take, name="questions", daemon=True).start()
    ledger = open_ledger(config.ledger_url, busy_timeout_s=config.ledger.busy_timeout_s)
    answering = ComparisonServer(config, ledger, str(given["asker"]), Path(given["spill"]), given["tables"])
    with contextlib.suppress(BrokenPipeError):
        while True:
            for answer in answering.answers(asked.get()):
                write(outgoing, answer)


def main() -> None:
    """Run the process."""
    os.nice(_NICE)
    load_pandas_later()
    log.as_library()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print must not mix with the answers
    serve(sys.stdin.buffer, answers)


if __name__ == "__main__":
    main()
