"""From two addresses to a copy job: a folder into a folder, or one file to a folder or a name."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import unquote

from replication.core.copying.configuration import CopyConfiguration
from replication.core.copying.conversions import converted_path
from replication.core.copying.names import ROOT, RelativePath
from replication.datasets.finders.base import ListsIntoSink
from replication.datasets.finders.recursive import OneDataset, RecursiveDataset, SingleFileDataset
from replication.datasets.job import CopyJob
from replication.datasets.stores.base import Entry, EntryKind, HasSnapshots, Store, TreeChanges
from replication.datasets.stores.local import LocalStore
from replication.datasets.stores.open import check_address, is_local, local_path, open_source, open_store
from replication.error_text import one_line
from replication.errors import MissingFileError, ReplicationError, RequestError, StorageError
from replication.files.mounts import place
from replication.log import redact

_SAME_SCHEMES = {"s3a": "s3", "ssh": "sftp"}


@contextmanager
def copy_job(
    source: str,
    target: str,
    configuration: CopyConfiguration,
    since_snapshot: str = "",
) -> Iterator[CopyJob]:
    """The job that copies one address to another; its stores are closed at the end.

    A folder's content goes into the folder ``target``. A file goes into ``target`` if that is a folder or ends with
    ``/``, else it gets that name. With ``since_snapshot``, a folder is compared only where it changed since then.

    Raises:
        MissingFileError: nothing is at ``source``.
        RequestError: the target is within the source; or the source, if it is a folder, within a target whose files
            that it does not have are to be removed; or the source has no such snapshot.
        StorageError: a store does not answer.
    """
    refuse_nested(source, target, either=False)
    with ExitStack() as stack:
        origin = stack.enter_context(open_source(source, configuration))
        found = at_root(origin)
        if found is None and not _has_entries(origin):
            raise MissingFileError(f"there is nothing at {origin.url}", "Check the address")
        dataset: ListsIntoSink
        if found is None or found.kind is EntryKind.FOLDER:
            refuse_nested(source, target, either=configuration.delete)
            there = stack.enter_context(open_store(target))
            changes = _changes(origin, since_snapshot) if since_snapshot else None
            dataset = RecursiveDataset(origin, changes=changes)
        elif since_snapshot:
            raise _refused_snapshot(origin)
        elif found.kind is EntryKind.FILE:
            above, name = _split(source)
            at, named = _split(os.path.realpath(local_path(source))) if is_local(source) else (above, name)
            origin = stack.enter_context(open_source(at, configuration))
            unpacked = origin.status(RelativePath(named))
            if unpacked is not None and unpacked.kind is EntryKind.FOLDER and unpacked.attributes is not None:
                there = stack.enter_context(open_store(target))
                dataset = RecursiveDataset(origin, unpacked.attributes.path)
            else:
                there, destination = _single_target(target, name, configuration)
                stack.enter_context(there)
                dataset = SingleFileDataset(origin, RelativePath(named), destination)
        else:
            raise RequestError(f"{origin.url} is a {found.kind.value}", "Name a file or a folder")
        yield CopyJob(origin, there, OneDataset(dataset), configuration)


def _changes(origin: Store, snapshot: str) -> TreeChanges:
    if not isinstance(origin, HasSnapshots):
        raise _refused_snapshot(origin)
    return origin.changes_since(snapshot)


def _refused_snapshot(origin: Store) -> RequestError:
    return RequestError(f"{origin.url} has no snapshots", "Name a folder of HDFS, or copy without --since-snapshot")


def _single_target(target: str, name: str, configuration: CopyConfiguration) -> tuple[Store, RelativePath]:
    there = open_store(target)
    found = at_root(there)
    if target.endswith("/") or (found is not None and found.kind is EntryKind.FOLDER):
        return there, converted_path(RelativePath(name), configuration.conversions)
    there.close()
    if found is not None and found.kind is EntryKind.OTHER:  # a device would be replaced by the file
        raise RequestError(f"{there.url} is a {found.kind.value}", "Name a file or a folder")
    above, given = _split(target)
    return open_store(above), RelativePath(given)


def _split(url: str) -> tuple[str, str]:
    if is_local(url):
        return os.path.split(os.path.abspath(local_path(url)))
    above, _, name = url.rstrip("/").rpartition("/")
    if above.endswith(":/"):
        raise RequestError(f"{redact(url)} names no file", "Name a folder or a file of the store")
    return above, unquote(name) if url.startswith(("http://", "https://")) else name


def at_root(store: Store) -> Entry | None:
    """What is at a store's address; StorageError when the store does not answer, or refuses the user."""
    try:
        return store.status(ROOT)
    except ReplicationError:
        raise
    except Exception as error:  # each driver has its own errors
        what, hint = "does not answer", "Check the address and the credentials"
        if store.traits.is_local:
            what, hint = "cannot be looked at", "Check the path: its links, and the permissions of the folders above"
        raise StorageError(f"{store.url} {what}: {redact(one_line(error))}"[:500], hint) from None


def check_target(store: Store, *, is_written: bool) -> None:
    """Refuse a target that does not answer or is no folder or, if ``is_written``, that this host may not write to.

    Raises:
        RequestError: something else is there, or above it.
        StorageError: it does not answer, or refuses the user.
    """
    found = at_root(store)
    if found is not None and found.kind is not EntryKind.FOLDER:
        raise RequestError(f"{store.url} is not a folder", "Name a folder, or one that does not exist yet")
    if is_written and isinstance(store, LocalStore):
        there = next(path for path in (Path(store.root), *Path(store.root).parents) if path.exists())
        if not there.is_dir():
            raise RequestError(f"{there}, above {store.root}, is a file", "Name another target")
        if not os.access(there, os.W_OK | os.X_OK, effective_ids=True):
            raise StorageError(f"{there} may not be written", "Check its permissions, and that it is mounted to write")


def is_missing(store: Store) -> bool:
    """Whether nothing is at a store's address; StorageError when the store does not answer."""
    return at_root(store) is None and not _has_entries(store)


def _has_entries(store: Store) -> bool:
    try:
        return next(iter(store.scan(ROOT)), None) is not None
    except OSError:
        return False


def refuse_nested(source: str, target: str, *, either: bool = True) -> None:
    """Raise RequestError if the target is the source, or within it.

    ``either`` also refuses a source within the target, which a sync copies into itself and ``delete`` removes.
    """
    for address in (source, target):
        check_address(address)
    shown, other = redact(source), redact(target)
    for origin, there in zip(_segments(source), _segments(target), strict=False):
        if there[: len(origin)] == origin:
            raise RequestError(
                f"target {other} is the source {shown} or within it", "Name a target outside of the source"
            )
        if either and origin[: len(there)] == there:
            raise RequestError(f"{shown} is within {other}", "Name a target that does not hold the source")


def is_same_folder(one: str, other: str) -> bool:
    """Whether two addresses are of one folder."""
    return any(a == b for a, b in zip(_segments(one), _segments(other), strict=False))


def _segments(url: str) -> list[tuple[str, ...]]:
    """The parts of an address, the same for every address of one folder: the store's, then each folder's name.

    A folder of this host has others in its file system, which may be mounted at several places.
    """
    if is_local(url):
        path = os.path.realpath(local_path(url))
        return [("file", *Path(path).parts), place(path)]
    scheme, _, rest = url.partition("://")
    host, _, path = rest.partition("/")
    user, _, host = host.rpartition("@")
    store = [_SAME_SCHEMES.get(scheme, scheme), user.partition(":")[0], host.lower()]
    return [(*store, *(folder for folder in posixpath.normpath(f"/{path}").split("/") if folder))]
