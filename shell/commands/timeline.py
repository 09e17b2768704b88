"""timeline: what actions did to datasets' files, and which files a dataset has as of any instant."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from replication.error_text import counted
from replication.errors import RequestError
from shell.cli.interrupting import leaving_on_interrupt
from shell.cli.invocation import Invocation
from shell.cli.render import bytes_text, moment_text
from shell.commands.dataset import DATASETS_FILE

if TYPE_CHECKING:
    from peer.timeline.upkeep import DatasetUpkeep
    from replication.config import Config
    from replication.core.timeline.instants import Instant
    from replication.timeline.recorded import RecordedTimeline

_CHECK_S = 0.5

FileOption = Annotated[
    Path,
    Option(
        "--file",
        "-f",
        metavar="FILE",
        envvar="WALSHIP_DATASETS",
        help="Where the dataset is declared, if its target needs options such as an endpoint or a password.",
    ),
]
DatasetArgument = Annotated[str, Argument(metavar="DATASET", help="As timeline list names it.")]


def timeline_list(
    invocation: Invocation,
    name: Annotated[str | None, Argument(metavar="NAME", help="Only of this dataset or table.")] = None,
) -> None:
    """List the instants of the cluster's timeline, oldest first: what was done to which dataset.

    Of a table these are replay's commits and folds, bootstraps, and drills, as far back as its snapshots are kept.
    """
    from peer.timeline.configured import configured_timeline

    config = invocation.config()
    events = configured_timeline(config).following(0)
    rows = [_row(event.instant, event.number) for event in events if name in (None, event.instant.dataset)]
    if name is not None:
        from peer.timeline.of_tables import instants_of_table

        found = instants_of_table(config, name)
        if found is None and not rows:
            raise RequestError(f"there is no dataset or table {name}", "See walship timeline list, or listtables")
        rows += [_row(instant, instant.key) for instant in found or ()]
    if not invocation.printer.as_json:  # an instant is named by when it was completed, if it was
        rows = [row | {"instant": None} if row["completed"] else row for row in rows]
    columns = ("event", "at", "action", "state", *(("dataset",) if name is None else ()), "instant", "completed")
    invocation.printer.rows(rows, columns, f"nothing was done to {name}" if name else "no action is on the timeline")


def _row(instant: Instant, event: object) -> dict[str, object]:
    return {
        "event": event,
        "at": moment_text(instant.time),
        "action": instant.action.value,
        "state": instant.state.value,
        "dataset": instant.dataset,
        "instant": instant.time,
        "completed": instant.completed or None,
    }


def timeline_files(
    invocation: Invocation,
    dataset: DatasetArgument,
    as_of: Annotated[
        int | None,
        Option(
            "--as-of",
            metavar="INSTANT",
            help="As this instant left them, by the column completed of timeline list; the newest otherwise.",
        ),
    ] = None,
    file: FileOption = DATASETS_FILE,
) -> None:
    """List the files of a dataset that a reader sees, now or as of an instant."""
    from peer.timeline.configured import configured_timeline, verb_views
    from replication.datasets.declared.definitions import DatasetFile

    config = invocation.config()
    timeline = configured_timeline(config)
    _refuse_table(config, timeline, dataset)
    invocation.call_peers(timeline.state().roots.get(dataset, ""))
    with verb_views(config, timeline, DatasetFile(file).target_options) as views:
        instant = views.sync().instant if as_of is None else as_of
        rows = (
            {
                "partition": name,
                "path": version.path,
                "bytes": version.size,
                "size": bytes_text(version.size),
                "added": version.added,
            }
            for name in views.partitions(dataset)
            for found in views.as_of(dataset, name, instant)  # of one instant, whatever is published meanwhile
            for version in (*([found.whole] if found.whole is not None else []), *found.deltas)
        )
        invocation.printer.rows(rows, empty="no files")


def timeline_serve(invocation: Invocation) -> None:
    """Answer questions about the timeline over HTTP, until Ctrl-C; needs walship[timeline]."""
    from peer.timeline.serving.configured import serving_timeline

    config, printer = invocation.config(), invocation.printer
    invocation.call_peers("walship://")  # also for datasets that are yet to come
    with leaving_on_interrupt(printer.stopped), serving_timeline(config) as server:
        scheme = "https" if config.tls.enabled else "http"
        printer.value(
            {"address": server.address}, f"the timeline of {config.cluster.name}: {scheme}://{server.address}"
        )
        waiting = threading.Event()
        while not waiting.wait(_CHECK_S):
            server.check()


def timeline_clean(
    invocation: Invocation,
    dataset: DatasetArgument,
    keep_versions: Annotated[
        int | None,
        Option("--keep-versions", metavar="N", min=1, help="Versions to keep of each file, including the newest."),
    ] = None,
    keep_age: Annotated[
        str, Option("--keep-age", metavar="AGE", help="Keep versions visible within this time, such as 12h.")
    ] = "",
    every: Annotated[bool, Option("--all", help="Look at every partition, not only at those that changed.")] = False,
    file: FileOption = DATASETS_FILE,
) -> None:
    """Delete old versions of a dataset's files; what readers hold stays."""
    from replication.core.timeline.cleaning import KeepPolicy
    from shell.copying.options import age_ns

    if bool(keep_versions) == bool(keep_age):
        raise RequestError("--keep-versions or --keep-age is missing, or both are given", "Give one of them")
    since = (time.time_ns() - age_ns(keep_age)) // 1000 if keep_age else None
    with _upkeep(invocation, dataset, file) as upkeep:
        done = upkeep.clean(KeepPolicy(keep_versions, since), every=every)
    _print_deleted(invocation, dataset, done)


def timeline_rollback(
    invocation: Invocation,
    dataset: DatasetArgument,
    instants: Annotated[
        list[int], Argument(metavar="INSTANT…", help="As the column completed of timeline list has them.")
    ],
    file: FileOption = DATASETS_FILE,
) -> None:
    """Undo instants of a dataset: their files are deleted, and those that they replaced are seen again."""
    with _upkeep(invocation, dataset, file) as upkeep:
        done = upkeep.rollback(instants)
    _print_deleted(invocation, dataset, done)


def timeline_restore(
    invocation: Invocation,
    dataset: DatasetArgument,
    instant: Annotated[
        int,
        Argument(metavar="INSTANT", help="As the column completed of timeline list has it; all later ones are undone."),
    ],
    file: FileOption = DATASETS_FILE,
) -> None:
    """Put a dataset back to what it was at an instant."""
    with _upkeep(invocation, dataset, file) as upkeep:
        done = upkeep.restore(instant)
    _print_deleted(invocation, dataset, done)


def _print_deleted(invocation: Invocation, dataset: str, done: Instant | None) -> None:
    count = len(done.changes.removes) if done is not None else 0
    row = {"dataset": dataset, "instant": done.completed if done is not None else None, "deleted": count}
    invocation.printer.value(
        row, f"{counted(count, 'file')} of {dataset} deleted" if done else f"nothing to do for {dataset}"
    )


@contextmanager
def _upkeep(invocation: Invocation, dataset: str, file: Path) -> Iterator[DatasetUpkeep]:
    from peer.timeline.configured import configured_timeline, verb_views
    from peer.timeline.upkeep import DatasetUpkeep
    from replication.datasets.declared.definitions import DatasetFile
    from replication.datasets.stores.open import open_store
    from replication.timeline.holds import TimelineHolds

    config = invocation.config()
    timeline = configured_timeline(config)
    _refuse_table(config, timeline, dataset)
    invocation.call_peers(timeline.state().roots.get(dataset, ""))
    options = DatasetFile(file).target_options
    with verb_views(config, timeline, options) as views:
        holds = TimelineHolds(config.timeline_url)
        yield DatasetUpkeep(dataset, timeline, views, holds, lambda root: open_store(root, options(dataset, root)))


def _refuse_table(config: Config, timeline: RecordedTimeline, name: str) -> None:
    """Raise RequestError for the name of a table: its versions are snapshots, which its own verbs keep."""
    from peer.timeline.of_tables import instants_of_table

    if name not in timeline.state().roots and instants_of_table(config, name) is not None:
        raise RequestError(
            f"{name} is a table, and only the files of datasets are on the timeline",
            f"See walship timeline list {name} for its instants, walship read {name} for its rows",
        )
