"""``python -m peer.verify.answering``: the process that answers one asker's questions about tables, and then ends.

The receiver starts one per conversation and only passes bytes on, so that reading millions of rows neither takes its
time nor its memory. Standard input has one line of JSON (the configuration and who asks), then questions; standard
output answers; each is preceded by its length in four bytes. At the end of standard input, so also when its parent has
gone, the process ends, whatever it is at.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import struct
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, BinaryIO
from uuid import UUID

import duckdb

from peer.tables.read import Reader, earliest
from peer.verify.digest import Reading, encode_buckets, open_reading
from replication import log
from replication.config import Config
from replication.core.definition.schema import TableSpec
from replication.errors import ReplicationError, UnknownTableError
from replication.ledger.base import Ledger
from replication.ledger.sql.ledger import open_ledger
from replication.link import questions as q
from replication.link.base import Reason, Refusal
from replication.retries import repeated_on

LENGTH = struct.Struct(">I")
_NICE = 10
_TRIES = 3


class Answering:
    """Answers questions about one cluster's tables. One thread uses it.

    Args:
        config: says where the catalog is.
        ledger: kept by the caller.
        asker: name of the cluster that asks.
        spill: a folder for what does not fit into memory.
    """

    def __init__(self, config: Config, ledger: Ledger, asker: str, spill: Path) -> None:
        self._ledger = ledger
        self._asker = asker
        self._spill = spill
        self._reader = Reader(config, ledger)
        self._reading: Reading | None = None

    def answers(self, raw: bytes) -> Iterator[bytes]:
        """The answers to a question; a refusal when something is wrong."""
        try:
            for answer in self._answers(q.decode_question(raw)):
                yield q.encode_answer(answer)
        except ReplicationError as error:
            yield q.encode_answer(Refusal(Reason.NOT_READY, error.what, error.hint))
        except (duckdb.Error, OSError) as error:
            what = str(error).strip().splitlines()[0]
            is_full = isinstance(error, duckdb.OutOfMemoryException)
            hint = "2,048 of its rows have to fit into that memory: they do not" if is_full else "Try again"
            yield q.encode_answer(Refusal(Reason.NOT_READY, f"reading failed: {what}", hint))

    def about(self, table: UUID, name: str) -> q.About:
        """What a table is, and how far it has come."""
        specs = self._ledger.tables.all()
        spec = next((spec for spec in specs if spec.uuid == table), None)
        if spec is None:
            return q.About(None, is_taken=any(spec.name == name for spec in specs))
        rules = [rule for rule in self._ledger.rules.all() if rule.table == table and rule.peer == self._asker]
        times = self._ledger.time.replicated(table).values()
        return q.About(
            spec,
            tuple(rule.group for rule in rules),
            min((reached.t for reached in times), default=0),
            earliest(self._reader.catalog, spec),
        )

    def open(self, ask: q.AskRead) -> Reading:
        """Open a reading and look at all of it; the one before is closed.

        Raises:
            RequestError: it cannot be read as of that time.
        """
        spec = replace(ask.spec, name=self._spec(ask.spec.uuid).name)
        return self._looked_at(spec, ask.groups, None if ask.as_of == q.NOW else ask.as_of)

    @repeated_on(duckdb.IOException, times=_TRIES)  # maintenance deleted a file just now
    def _looked_at(self, spec: TableSpec, groups: tuple[str, ...], as_of: int | None) -> Reading:
        self.close()
        self._reading = reading = open_reading(self._reader.catalog, spec, groups, as_of, self._spill)
        reading.buckets()
        return reading

    def close(self) -> None:
        """End the reading. Idempotent."""
        if self._reading is not None:
            self._reading.close()
            self._reading = None

    def _answers(self, question: q.Question) -> Iterator[q.Answer]:
        match question:
            case q.AskTables():
                yield q.TablesAnswer(frozenset(spec.uuid for spec in self._ledger.tables.all()))
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

    def _open(self) -> Reading:
        if self._reading is None:
            raise UnknownTableError("no table is being read", "Ask to read one first")
        return self._reading

    def _spec(self, table: UUID) -> TableSpec:
        found = next((spec for spec in self._ledger.tables.all() if spec.uuid == table), None)
        if found is None:
            raise UnknownTableError(f"there is no table {table}")
        return found


def write(stream: IO[bytes], content: bytes) -> None:
    """One question or answer."""
    stream.write(LENGTH.pack(len(content)) + content)
    stream.flush()


def read(stream: IO[bytes]) -> bytes | None:
    """The next one; None at the end."""
    head = stream.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (size,) = LENGTH.unpack(head)
    content = stream.read(size)
    return content if len(content) == size else None


def serve(incoming: BinaryIO, outgoing: BinaryIO) -> None:
    """Answer until the asker has gone."""
    given = json.loads(incoming.readline())
    config = Config.model_validate(given["config"])
    asked: queue.Queue[bytes] = queue.Queue(2)

    def take() -> None:
        while (raw := read(incoming)) is not None:
            asked.put(raw)
        os._exit(0)

    threading.Thread(target=take, name="questions", daemon=True).start()
    ledger = open_ledger(config.ledger_url, busy_timeout_s=config.ledger.busy_timeout_s)
    answering = Answering(config, ledger, str(given["asker"]), Path(given["spill"]))
    with contextlib.suppress(BrokenPipeError):
        while True:
            for answer in answering.answers(asked.get()):
                write(outgoing, answer)


def main() -> None:
    """Be that process."""
    os.nice(_NICE)
    log.as_library()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever else is printed is no answer
    serve(sys.stdin.buffer, answers)


if __name__ == "__main__":
    main()
