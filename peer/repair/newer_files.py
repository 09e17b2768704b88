"""Files of a host that are newer than its restored ledger, taken up by a commit sequence.

The first step makes the ledger know of their numbers, so a later look at the disk would not find those that are still
to be saved. Hence all steps are stored before it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID

from peer.repair.on_disk import of_known_tables, on_disk, read_file, save_whole
from replication import log
from replication.commit.leases import Leases
from replication.commit.redo import Redo, SequenceOutcome
from replication.commit.sequence import CommitSequence, SequenceBuilder
from replication.commit.step import CommitStep, step_from_json, step_type
from replication.config import Config
from replication.core.ids import NIL_UUID, FileId
from replication.error_text import counted
from replication.files.base import Files
from replication.ledger.base import Ledger
from replication.ledger.sql.rebuild import RebuildInput, adopt

OPERATION = "reincarnate"

_log = log.get(__name__)


@dataclass
class RestoredHost:
    """A stopped host whose ledger was restored; ``saved`` gets a line for each file that is not taken up whole."""

    config: Config
    ledger: Ledger
    files: Files
    saved: list[str] = field(default_factory=list)

    def is_known(self, table: UUID) -> bool:
        """Whether the ledger has the table."""
        return table == NIL_UUID or self.ledger.tables.by_uuid(table) is not None


@step_type("reincarnate.take_up")
@dataclass(frozen=True)
class TakeUpFiles(CommitStep[RestoredHost]):
    """Have the ledger know of whole files, and of all numbers below ``upcoming``; ``paths`` by the file's id."""

    paths: dict[str, str]
    upcoming: int

    def verify(self, context: RestoredHost) -> bool:
        """Whether the ledger has them all."""
        known = all(context.ledger.files.get(FileId.parse(file)) is not None for file in self.paths)
        return known and context.ledger.files.upcoming(context.config.cluster.host) >= self.upcoming

    def execute(self, context: RestoredHost) -> None:
        """Add them in one transaction."""
        read = [read_file(context.files, path) for path in self.paths.values()]
        known = [each for each in read if each is not None]
        adopt(context.config.ledger_url, context.config.cluster.host, known, self.upcoming)
        for each in known:
            _log.warning("newer_file_taken_up", file=str(each.file), end=each.length)

    def describe(self) -> str:
        return f"take up {counted(len(self.paths), 'file')} newer than the ledger"


@step_type("reincarnate.save_frames")
@dataclass(frozen=True)
class SaveFrames(CommitStep[RestoredHost]):
    """Copy the readable frames of known tables out of a file, and move it to the quarantine; ``problem`` is why."""

    path: str
    problem: str

    def verify(self, context: RestoredHost) -> bool:
        """Whether the file was moved, which is the last that ``execute`` does."""
        return not context.files.exists(self.path)

    def execute(self, context: RestoredHost) -> None:
        """Frames that are copied twice, after a crash in between, count once: the second copy is a duplicate."""
        url = context.config.ledger_url
        for line in save_whole(context.config, url, context.files, {self.path: self.problem}, context.is_known):
            _log.error("newer_file_saved", reason=line)
            context.saved.append(line)

    def describe(self) -> str:
        return f"save the readable frames of {self.path}: {self.problem}"


def take_up(config: Config, ledger: Ledger, files: Files) -> tuple[int, tuple[str, ...]]:
    """Register files of this host that are newer than the ledger: how many, and a line for each that is not whole.

    Of those, the readable frames of known tables are copied. What an earlier call left unfinished is finished.

    Raises:
        StepFailedError: a file could not be read or saved; the next call goes on there.
    """
    host = RestoredHost(config, ledger, files)
    name, urn = ledger.cluster.name, f"{OPERATION} {config.cluster.host}"
    with Leases(ledger.steps) as leases:
        unfinished = [step_from_json(step) for left in ledger.steps.sequences(name, urn) for step in left.steps]
        taken_up = 0
        if Redo(leases, host).retry(name, urn) is SequenceOutcome.DONE:
            taken_up = sum(len(step.paths) for step in unfinished if isinstance(step, TakeUpFiles))
        sequence = _plan(host, name, urn)
        if sequence.steps:
            sequence.run(host, leases)
            taken_up += sum(len(step.paths) for step in sequence.steps if isinstance(step, TakeUpFiles))
    return taken_up, tuple(host.saved)


def _plan(host: RestoredHost, name: str, urn: str) -> CommitSequence[RestoredHost]:
    """What is to be done with this host's newer files; no steps when there are none."""
    slot, builder = host.config.cluster.host, SequenceBuilder[RestoredHost](host.ledger.steps, name, urn)
    upcoming = host.ledger.files.upcoming(slot)
    found, problems, above = on_disk(host.config, host.files, upcoming)
    whole = of_known_tables(found, host.is_known, "a table that is younger than the ledger", problems)
    known: list[RebuildInput] = [each for each in whole if each.claims]
    if known or above > upcoming:
        builder.add(TakeUpFiles({str(each.file): each.path for each in known}, above))
    builder.add(*(SaveFrames(path, problem) for path, problem in problems.items()))
    return builder.build()
