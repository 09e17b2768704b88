"""dataset: copies that are declared in a file, and run again and again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from replication.error_text import counted, one_line
from replication.errors import ConfigError, CopyIncompleteError, ReplicationError
from replication.log import redact
from shell.cli.interrupting import leaving_on_interrupt
from shell.cli.invocation import Invocation
from shell.cli.pairs import pairs
from shell.cli.render import Printer, moment_text

if TYPE_CHECKING:
    from replication.datasets.copying.progress import CopyCounts
    from replication.datasets.declared.definitions import DatasetDefinition, DatasetFile
    from replication.datasets.declared.history import DatasetHistory, DatasetRun
    from replication.datasets.declared.schedule import DatasetSchedule
    from replication.datasets.job import CopyJob

FileOption = Annotated[
    Path, Option("--file", "-f", metavar="FILE", envvar="WALSHIP_DATASETS", help="Where datasets are declared.")
]
NameArgument = Annotated[str, Argument(metavar="NAME", help="A dataset; see walship dataset list.")]
DATASETS_FILE = Path("datasets.toml")
_HISTORY = ".db"
_DIGITS_MAX = 18  # what is longer is no number of an option


@dataclass(frozen=True, slots=True)
class DeclaredOptions:
    """What a dataset is declared with, beside its name and its stores."""

    finder: Annotated[
        str, Option("--finder", metavar="NAME", help="folder, glob, stream, manifest, table or a plugin.")
    ] = "folder"
    properties: Annotated[
        list[str] | None,
        Option(
            "--set",
            metavar="NAME=VALUE",
            help="An option of the finder: pattern of glob, below and days of stream, manifest of manifest, below of"
            " table.",
        ),
    ] = None
    options: Annotated[
        list[str] | None,
        Option("--option", "-o", metavar="NAME=VALUE", help="An option of `walship copy`, such as delete=true."),
    ] = None
    source_options: Annotated[
        list[str] | None,
        Option(
            "--source-option", metavar="NAME=VALUE", help="An option of the source's store, such as password=$NAME."
        ),
    ] = None
    target_options: Annotated[
        list[str] | None, Option("--target-option", metavar="NAME=VALUE", help="An option of the target's store.")
    ] = None
    priority: Annotated[int, Option("--priority", metavar="N", help="Datasets with a higher one run first.")] = 0
    after: Annotated[
        str, Option("--after", metavar="DATASET", help="With run --every: run when that one has changed.")
    ] = ""


@contextmanager
def _opened(file: Path) -> Iterator[tuple[DatasetFile, DatasetHistory]]:
    from replication.datasets.declared.definitions import DatasetFile
    from replication.datasets.declared.history import DatasetHistory

    _check_name(file)
    if file.is_dir():
        raise ConfigError(f"{file} is a folder", "Give the file of the datasets: --file FILE")
    if not file.absolute().parent.is_dir():
        raise ConfigError(
            f"there is no folder {file.parent}, for {file.name}", "Give the file of the datasets: --file FILE"
        )
    database = file.with_suffix(_HISTORY)
    kept = file.exists() or database.exists()
    with closing(DatasetHistory(database if kept else Path(":memory:"))) as history:  # nothing was ever declared here
        yield DatasetFile(file), history


def _check_name(file: Path) -> None:
    """Raise ConfigError if the history, which is beside the file, would be the file itself."""
    if file.suffix == _HISTORY:
        raise ConfigError(f"{file} would be the history, too", "Give a file of another name, such as datasets.toml")


def dataset_add(
    invocation: Invocation,
    name: Annotated[str, Argument(metavar="NAME", help="The dataset's name.")],
    source: Annotated[str, Argument(metavar="SRC", help="A folder: a path, a URL, or walship://PEER/FOLDER.")],
    target: Annotated[str, Argument(metavar="DST", help="Where it goes: likewise.")],
    declared: DeclaredOptions,
    file: FileOption = DATASETS_FILE,
) -> None:
    """Declare a dataset; both stores are asked whether they answer.

    If a cluster is named, the dataset's files are recorded on its timeline: see walship timeline list.
    """
    from replication.datasets.declared.definitions import DatasetDefinition, DatasetFile
    from replication.datasets.stores.open import absolute

    source, target = absolute(source), absolute(target)
    given = (
        pairs(declared.properties or []),
        _typed(declared.options),
        invocation.caller_of(source) | pairs(declared.source_options or []),
        invocation.caller_of(target) | pairs(declared.target_options or []),
    )
    timeline = invocation.timeline_url()
    _check_name(file)
    definition = DatasetDefinition(
        name, source, target, declared.finder, *given, timeline, declared.priority, declared.after
    ).check()
    _configuration(definition.options)
    _ask_stores(definition, invocation.printer)
    DatasetFile(file).add(definition)
    invocation.printer.value({"dataset": name, "file": str(file)}, f"dataset {name} is in {file}")


def _ask_stores(definition: DatasetDefinition, printer: Printer) -> None:
    """Open both stores and make the finder, so that what cannot work is refused before it is declared."""
    from replication.datasets.declared.definitions import resolved
    from replication.datasets.finders.plugins import finder_of
    from replication.datasets.request import at_root, is_missing
    from replication.datasets.stores.open import open_store

    with (
        open_store(definition.source, resolved(definition.source_options)) as origin,
        open_store(definition.target, resolved(definition.target_options)) as there,
    ):
        finder_of(definition.finder)(origin, definition.properties)
        at_root(there)
        if is_missing(origin):
            printer.note(f"there is nothing at {origin.url} yet")
        if origin.traits.is_secure and not there.traits.is_secure:
            printer.note(f"{there.url} is not encrypted on its way, and {origin.url} is")


def dataset_list(invocation: Invocation, file: FileOption = DATASETS_FILE) -> None:
    """List the datasets and how they stand."""
    with _opened(file) as (definitions, history):
        rows = []
        for each in definitions.all():
            runs = history.runs(each.name, 1)
            state = history.state(each.name)
            rows.append(
                {
                    "dataset": each.name,
                    "source": redact(each.source),
                    "target": redact(each.target),
                    "finder": each.finder,
                    "state": state.word,
                    "last_run": moment_text(runs[0].begun_us) if runs else "",
                    "files": runs[0].files if runs else None,
                    "error": state.error,
                }
            )
        invocation.printer.rows(rows, empty="no datasets; see walship dataset add")


def dataset_show(invocation: Invocation, name: NameArgument, file: FileOption = DATASETS_FILE) -> None:
    """Show a dataset; of its stores' options only those that name a variable of the environment."""
    from replication.datasets.declared.definitions import specification

    with _opened(file) as (definitions, history):
        state = history.state(name)
        invocation.printer.value(specification(definitions.get(name)) | {"state": state.word, "error": state.error})


def dataset_run(
    invocation: Invocation,
    names: Annotated[list[str] | None, Argument(metavar="NAME", help="Default: all that are active.")] = None,
    every: Annotated[
        str, Option("--every", metavar="AGE", help="Repeat, waiting this long after each pass, such as 30s.")
    ] = "",
    file: FileOption = DATASETS_FILE,
) -> None:
    """Run datasets, one after the other; one that fails stops no other. Exits with 12 if one failed."""
    from replication.datasets.declared.schedule import DatasetSchedule
    from shell.copying.options import age_ns

    schedule, pause_s = DatasetSchedule(), max(1.0, age_ns(every) / 1e9) if every else 0.0
    is_alone = names is not None and len(names) == 1 and not every  # its failure is the command's
    note = (lambda _: None) if is_alone else invocation.printer.note
    with leaving_on_interrupt(invocation.printer.stopped):
        with _opened(file) as opened:
            if not names and not _active(*opened):
                invocation.printer.note(f"no dataset in {file} is active; see walship dataset list")
            failed = _run_due(invocation.printer, opened, names, schedule, note)
        while every:
            threading.Event().wait(pause_s)
            try:
                with _opened(file) as opened:  # the first dataset may have been declared since
                    _run_due(invocation.printer, opened, names, schedule, note)
            except ReplicationError as error:  # a person edits the file
                note(str(error))
    if failed and is_alone:
        raise failed[0]
    if failed:
        what, hint = getattr(failed[0], "what", one_line(failed[0])), getattr(failed[0], "hint", "")
        raise CopyIncompleteError(f"{counted(len(failed), 'dataset')} failed; the first: {what}", hint)


def _run_due(
    printer: Printer,
    opened: tuple[DatasetFile, DatasetHistory],
    names: list[str] | None,
    schedule: DatasetSchedule,
    note: Callable[[str], None],
) -> list[Exception]:
    """Run what is due, and note failures."""
    from replication.datasets.declared.schedule import by_priority

    definitions, history = opened
    failed: list[Exception] = []
    chosen = [definitions.get(name) for name in names] if names else _active(definitions, history)
    for definition in by_priority(chosen):
        try:
            definition = definitions.get(definition.name)  # it may have been removed or edited since the pass began
            definition.check_timeline()
            if not schedule.is_due(definition):
                continue
            _run_one(definition, history, printer)
        except Exception as error:  # also a defect that one dataset meets
            reason = error if isinstance(error, ReplicationError) else one_line(error)
            note(f"{definition.name}: {reason}")
            schedule.retry(definition)
            failed.append(error)
    return failed


def _active(definitions: DatasetFile, history: DatasetHistory) -> list[DatasetDefinition]:
    """The datasets that are neither paused nor suspended."""
    return [each for each in definitions.all() if history.state(each.name).word in ("active", "failing")]


def _run_one(definition: DatasetDefinition, history: DatasetHistory, printer: Printer) -> None:
    """Run a dataset, then print its summary: a reader that has gone, or a full disk, is no failure of the dataset."""
    from replication.datasets.declared.running import run_dataset
    from shell.copying.running import print_counts, run_shown

    ran: list[CopyJob] = []

    def run(job: CopyJob) -> CopyCounts:
        ran.append(job)
        return run_shown(job, printer, definition.name)

    run_dataset(definition, _configuration(definition.options), history, run)
    print_counts(ran[0], printer, definition.name)


def dataset_pause(invocation: Invocation, name: NameArgument, file: FileOption = DATASETS_FILE) -> None:
    """Refuse runs of a dataset until resume."""
    with _opened(file) as (definitions, history):
        history.pause(definitions.get(name).name)
        invocation.printer.value({"dataset": name, "state": "paused"}, f"dataset {name} is paused")


def dataset_resume(invocation: Invocation, name: NameArgument, file: FileOption = DATASETS_FILE) -> None:
    """Allow runs of a dataset that is paused, or was suspended since it failed too often."""
    with _opened(file) as (definitions, history):
        history.resume(definitions.get(name).name)
        invocation.printer.value({"dataset": name, "state": "active"}, f"dataset {name} is active")


def dataset_remove(invocation: Invocation, name: NameArgument, file: FileOption = DATASETS_FILE) -> None:
    """Remove a dataset's declaration; what was copied and the history stay.

    The file is written anew, without its comments.
    """
    with _opened(file) as (definitions, _):
        definitions.remove(name)
        invocation.printer.value({"dataset": name, "removed": True}, f"dataset {name} is removed from {file}")


def dataset_history(
    invocation: Invocation,
    name: NameArgument,
    path: Annotated[
        str, Option("--path", metavar="FILE", help="When this file was copied, from where and by whom.")
    ] = "",
    limit: Annotated[int, Option("--limit", metavar="N", min=1, help="Print at most this many rows.")] = 20,
    file: FileOption = DATASETS_FILE,
) -> None:
    """Show a dataset's runs, or the copies of one file. Both are kept for 365 days."""
    with _opened(file) as (definitions, known):
        if not known.runs(name, 1):
            definitions.get(name)
        if path:
            rows = [row | {"at": moment_text(int(str(row["at_us"])))} for row in known.copies(name, path, limit)]
            columns = ("at", "path", "source", "bytes", "digest", "user", "host", "run")
            invocation.printer.rows(rows, columns, "it was not copied")
            return
        runs = [asdict(each) | _times(each) for each in known.runs(name, limit)]
        columns = ("run", "begun", "ended", "user", "files", "bytes", "failed", "error")
        invocation.printer.rows(runs, columns, "no runs")


def _times(run: DatasetRun) -> dict[str, str]:
    """When a run began and ended, for people."""
    ended = moment_text(run.ended_us) if run.ended_us else "runs, or was killed"
    return {"begun": moment_text(run.begun_us), "ended": ended}


def _configuration(options: Any) -> Any:
    from shell.copying.options import declared

    return declared(options)


def _typed(given: list[str] | None) -> dict[str, Any]:
    words: dict[str, Any] = {"true": True, "false": False}
    return {name: int(v) if _is_number(v) else words.get(v, v) for name, v in pairs(given or []).items()}


def _is_number(text: str) -> bool:
    """Whether a text is a number that is written like it; the folder 01 is none."""
    return text.isdecimal() and len(text) <= _DIGITS_MAX and str(int(text)) == text
