"""Runs a declared dataset: its finder over its stores, with the run noted in the history."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from replication.core.copying.configuration import CopyConfiguration
from replication.datasets.copying.progress import CopyCounts
from replication.datasets.declared.definitions import DatasetDefinition, resolved
from replication.datasets.declared.history import DatasetHistory
from replication.datasets.finders.plugins import finder_of
from replication.datasets.job import CopyJob
from replication.datasets.publication.recording import RecordedDataset
from replication.datasets.request import is_same_folder, refuse_nested
from replication.datasets.stores.base import Store
from replication.datasets.stores.open import open_source, open_store
from replication.error_text import counted, one_line
from replication.errors import LockedFileError, RequestError, StorageError
from replication.log import redact
from replication.timeline.recorded import RecordedTimeline
from replication.timeline.stored import open_records

_WALKING = ("folder", "glob", "stream", "table")  # these would find a target in their folder, and copy it into itself

_PLACES = {"account_name", "client_kwargs", "connection_string", "endpoint", "endpoint_url", "host", "port", "profile"}


def run_dataset(
    definition: DatasetDefinition,
    configuration: CopyConfiguration,
    history: DatasetHistory,
    run: Callable[[CopyJob], CopyCounts] = CopyJob.run,
) -> CopyCounts:
    """Run a dataset once. The run is noted in the history, with every file that was published.

    Raises:
        RequestError: it is paused, it failed too often and was suspended, one of its folders is within the other, or
            the timeline has files of it elsewhere.
        LockedFileError: another run of it goes on; nothing is noted.
        StorageError: a store does not answer.
    """
    state = history.state(definition.name)
    if state.paused or state.suspended:
        often = counted(state.failures, "time")
        why = "is paused" if state.paused else f"failed {often} and is suspended: {state.error}"
        raise RequestError(f"dataset {definition.name} {why}", f"walship dataset resume {definition.name}")
    with _opened(definition, configuration, history) as (source, target):
        finder = finder_of(definition.finder)(source, definition.properties)
        if definition.finder in _WALKING and definition.source_options == definition.target_options:
            root = finder.common_root
            walked = f"{definition.source.rstrip('/')}/{root}" if root else definition.source
            refuse_nested(walked, definition.target, either=configuration.delete and definition.finder == "folder")
        job = CopyJob(source, target, finder, configuration)
        job.recorded = RecordedDataset(definition.timeline, definition.name) if definition.timeline else None
        job.places = _places(definition)
        number = history.begin(definition.name, source.url, target.url)
        job.published = lambda file_set: history.copied(number, file_set)
        job.retry_hint = f"walship dataset resume {definition.name}"
        job.retry_suspended = state.failures == 0  # as after walship dataset resume
        try:
            _check_root(definition, target)
            run(job)
        except BaseException as failure:
            if isinstance(failure, LockedFileError):
                history.forget(number)
            else:  # an interrupt is an end, but not a failure
                is_failure = isinstance(failure, Exception)
                error = one_line(failure) if is_failure else "interrupted"
                history.end(number, definition.name, job.progress.counts, error, is_failure=is_failure)
            raise
        counts, error = job.progress.counts, ""
        if counts.failures:
            path, reason = next(iter(counts.failures.items()))
            error = f"{counted(counts.failed, 'file')} failed; the first: {path}: {reason}"
        history.end(number, definition.name, counts, error)
    return counts


def _check_root(definition: DatasetDefinition, target: Store) -> None:
    """Raise RequestError if the timeline has files of the dataset elsewhere: it would look for them at the target."""
    if not definition.timeline:
        return
    state = RecordedTimeline(open_records(definition.timeline)).state()
    root = state.roots.get(definition.name, target.url)
    if not is_same_folder(root, target.url):
        what = f"the timeline has files of dataset {definition.name} at {root}, and it is to go to {target.url} now"
        raise RequestError(what, "Add it under another name: walship dataset add")


def _places(definition: DatasetDefinition) -> str:
    """The options that say which store has an address, as text; empty if none does."""
    both = definition.source_options, definition.target_options
    given = [{name: options[name] for name in sorted(_PLACES & options.keys())} for options in both]
    return json.dumps(given, default=str) if any(given) else ""


@contextmanager
def _opened(
    definition: DatasetDefinition, configuration: CopyConfiguration, history: DatasetHistory
) -> Iterator[tuple[Store, Store]]:
    """Source and target of a dataset. That one does not answer is noted as a run that failed."""
    with ExitStack() as stack:
        try:
            given = resolved(definition.source_options), resolved(definition.target_options)
            source = stack.enter_context(open_source(definition.source, configuration, given[0]))
            target = stack.enter_context(open_store(definition.target, given[1]))
        except StorageError as failure:
            number = history.begin(definition.name, redact(definition.source), redact(definition.target))
            history.end(number, definition.name, CopyCounts(), one_line(failure))
            raise
        yield source, target
