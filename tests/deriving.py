"""A cluster in a folder that derives tables in the test's thread, with a real writer and a warehouse in memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import UUID

from peer.client.waiting import Waiting
from peer.derive.define import derive_table
from peer.derive.deriver import Deriver, Writing
from replication.coordination.paths import MemberKind
from replication.core.definition.schema import TableSpec
from replication.core.position import Position
from replication.core.rows.batch import LogBatch
from replication.ledger.base import Derivation
from replication.writer.wal.wal_series import Place
from replication.writer.writer import Writer
from tests.replaying import TableSite


class Killed(Exception):
    """The process is gone at this point."""


class DerivingSite(TableSite):
    """``derive`` does what the derive role does, until nothing is left to do."""

    def __init__(self, folder: Path, name: str, stack: ExitStack, **sections: dict[str, Any]) -> None:
        super().__init__(folder, name, **sections)
        stack.callback(self.close)
        self.membership = self.coordination.enrol(MemberKind.WORKERS, "h0", {})
        self._stack = stack
        self._writer: Writer | None = None
        self.kill_at = ""
        self.batches = 0
        self.now_us = 1
        self.aged: dict[UUID, int] = {}

    def writer(self) -> Writer:
        """A writer, opened when first asked for."""
        if self._writer is None:
            self._writer = Writer(
                self.ledger,
                self.coordination,
                Place(str(self.config.wal_dir), "h0"),
                self.config.writer,
                files=self.files,
            )
            self._stack.callback(self._writer.close)
        return self._writer

    def deriver(self) -> Deriver:
        """As a new process of the role has it."""
        return Deriver(self.config, self.ledger, self.tables, self._writing, self._wait, lambda: self.now_us, self.aged)

    def define(
        self, name: str, source: str = "", hook: str = "", options: Mapping[str, str] | None = None
    ) -> TableSpec:
        """As ``Cluster.derive_table``."""
        return derive_table(self.ledger, name, source, hook, options or {}, 3600)

    def derivation(self, spec: TableSpec) -> Derivation:
        """As the ledger has it."""
        return next(found for found in self.ledger.derivations.all() if found.table == spec.uuid)

    def derive(self, spec: TableSpec) -> int:
        """Steps until there is nothing to do; how many."""
        self.catch_up()
        steps = 0
        while self.deriver().step(self.derivation(spec)):
            steps += 1
            assert steps < 50, "it never ends"
        return steps

    def catch_up(self) -> None:
        """Register and replay all that is written."""
        self.register()
        self.replay()

    def _wait(self, position: Position) -> None:
        self._maybe_die("wait")
        self.catch_up()
        Waiting(self.ledger, None).wait(position, None, "visible", 20.0)  # type: ignore[arg-type]
        self._maybe_die("settle")

    def _writing(self) -> Writing:
        return _Watched(self)

    def _maybe_die(self, where: str) -> None:
        if self.kill_at == where:
            self.kill_at = ""
            raise Killed


class _Watched:
    """The site's writer, which counts and dies where it is told to."""

    def __init__(self, site: DerivingSite) -> None:
        self._site = site

    def derive(self, spec: TableSpec, logs: Iterable[LogBatch], batch_id: str) -> Position:
        """Before, amid or after the writing it may die."""
        site = self._site
        site._maybe_die("write")
        if site.kill_at == "amid":
            logs = self._dying(logs)
        position = site.writer().derive(spec, logs, batch_id)
        site.batches += 1
        site._maybe_die("written")
        return position

    def derived(self, spec: TableSpec, batch_id: str) -> Position | None:
        return self._site.writer().derived(spec, batch_id)

    def _dying(self, logs: Iterable[LogBatch]) -> Iterable[LogBatch]:
        for log in logs:
            yield log
            self._site._maybe_die("amid")
