"""Compares the folders of a source with those of a target, and tells a sink what needs copying."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial

from replication.core.copying.attributes import FileAttributes
from replication.core.copying.configuration import CopyConfiguration, Grouping
from replication.core.copying.conversions import origins
from replication.core.copying.copyable import CopyableFile
from replication.core.copying.names import ROOT, STAGING, RelativePath
from replication.datasets.listing.decisions import Decisions, Find
from replication.datasets.listing.sink import ListingSink, Tasks
from replication.datasets.listing.tasks import FolderTasks, note_missing
from replication.datasets.listing.walk import walk
from replication.datasets.stores.base import Entry, EntryKind, Store, TreeChanges, is_temporary
from replication.datasets.stores.same_names import name_key
from replication.error_text import one_line
from replication.errors import UnsafeNameError

BATCH = 256
SET_FILES = 100_000  # some kilobytes of memory each until they are published


def _nothing(path: RelativePath) -> None:
    """Find nothing, where the target has no such folder."""


class Comparison:
    """Lists what of a folder tree needs copying.

    ``build`` makes the copyable file of an origin file. All are of ``file_set``; None leaves that to the configuration.
    With ``changes`` of the source nothing else is listed.
    """

    def __init__(
        self,
        source: Store,
        target: Store,
        configuration: CopyConfiguration,
        build: Callable[[FileAttributes], CopyableFile],
        sink: ListingSink,
        file_set: str | None = None,
        changes: TreeChanges | None = None,
    ) -> None:
        self._file_set = "" if configuration.grouping is Grouping.DATASET and file_set is None else file_set
        self._source, self._target, self._sink = source, target, sink
        self._configuration, self._build, self._changes = configuration, build, changes
        self._key = name_key(target)
        self._begins: Collection[RelativePath] = ()
        self._first: Collection[RelativePath] = ()
        self._lock = threading.Lock()
        self.missing: set[RelativePath] = set()  # some folders of the target, below which it is not asked

    def run(self, begin: RelativePath = ROOT, first: Collection[RelativePath] = ()) -> None:
        """List a folder and, unless told otherwise, all below it; by several threads if the store is far away.

        With ``changes``, every changed folder is listed. Before that ``first``, which are folders in it, are: metadata
        of a table that others commit to name no file then that is not listed.
        """
        threads = 2 if self._source.traits.is_local else min(4, self._source.traits.threads)
        tasks = self._sink.tasks if self._changes is None else None
        elsewhere = None if tasks is None else self._elsewhere(tasks)
        if first:
            self._begins = self._first = self._changed(first)
            walk(self._first, self.visit, threads, elsewhere)
        self._begins = {begin} if self._changes is None else self._changed(self._changes.folders)
        walk(self._begins, self.visit, threads, elsewhere)
        if self._file_set is not None:
            self._sink.ended(self._file_set)

    def _changed(self, folders: Iterable[RelativePath]) -> set[RelativePath]:
        """Of changed folders, those that a listing of all would come to; each is listed without what is below it."""
        conf, found, is_barred = self._configuration, set[RelativePath](), False
        for folder in folders:
            above = list(folder.with_folders())
            if any(path.name == STAGING or not (conf.recursive and conf.filters.enters(path)) for path in above):
                continue
            if conf.backup_dir in above:
                is_barred = True
            else:
                found.add(folder)
        if is_barred and conf.backup_dir:
            self._enter(conf.backup_dir, [])
        return found

    def _elsewhere(self, tasks: Tasks) -> FolderTasks | None:
        source, target = self._source, self._target
        same = partial(Comparison, source, target, self._configuration, self._build, file_set=self._file_set)
        try:
            return FolderTasks(tasks, (source, target), same, self.missing, self._sink)
        except (pickle.PicklingError, AttributeError, TypeError):
            return None  # a plugin's dataset builds files in a way that cannot travel

    def visit(self, folder: RelativePath) -> Iterator[RelativePath]:
        """List one folder; those below that are to be listed, when it is."""
        below: list[RelativePath] = []
        sets: list[str] = [folder]
        try:
            self._files(folder, below, sets)
        except FileNotFoundError as error:
            if self._changes is None or folder not in self._changes.folders:  # else it is gone from where it was
                self._unlisted(folder, error, sets[-1])
        except Exception as error:  # each driver has its own errors
            self._unlisted(folder, error, sets[-1])
        if self._is_set:
            self._sink.ended(sets[-1])
        if not self._sink.is_stopped:
            yield from below

    @property
    def _is_set(self) -> bool:
        """Whether the files of each folder are a file set."""
        return self._file_set is None and self._configuration.grouping is Grouping.DIRECTORY

    def _unlisted(self, folder: RelativePath, error: Exception, file_set: str) -> None:
        if self._file_set is None and self._configuration.grouping is Grouping.FILE:
            self._sink.failed(folder or "/", one_line(error))
        else:
            file_set = file_set if self._file_set is None else self._file_set
            self._sink.unlisted(folder or "/", one_line(error), file_set)

    def _files(self, folder: RelativePath, below: list[RelativePath], sets: list[str]) -> None:
        """List a folder; ``sets`` gets the names of more file sets if it has a great many files."""
        conf = self._configuration
        decisions = Decisions(self._source, self._target, conf)
        find = _nothing if conf.versions else self._finder(folder)
        batch: list[CopyableFile] = []
        known = self._known()
        count = 0
        for count, entry in enumerate(self._source.scan(folder), 1):
            if self._sink.is_stopped:
                return
            if self._is_set and count % SET_FILES == 0:
                self._give(batch, sets[-1])
                batch = []
                self._sink.ended(sets[-1])
                sets.append(f"{folder}//{len(sets) + 1}")  # no folder has that name
            file = entry.attributes
            if entry.refused or file is None:
                self._refused(folder, entry, known)
                continue
            if file.path == STAGING or file.path.name == STAGING:
                continue
            if entry.kind is EntryKind.FOLDER:
                is_entered = conf.recursive and all(map(conf.filters.enters, (file.path, entry.path or file.path)))
                if known is not None:
                    named = self._folder_named(file.path)
                    is_entered = self._note(known, file.path, named, is_meant=is_entered) and is_entered
                if is_entered and file.path not in self._first and not self._is_unchanged(file.path):
                    self._enter(file.path, below)
            elif (copyable := self._built(file, known)) is not None:
                self._one(copyable, decisions, find or _nothing, batch, sets[-1])
                if len(batch) >= BATCH:
                    self._give(batch, sets[-1])
                    batch = []
        self._give(batch, sets[-1])
        if not count and folder and find is None and conf.filters.names(folder):
            self._sink.empty(folder)
        if conf.delete and find is not None:
            self._extras(folder, known)

    def _is_unchanged(self, folder: RelativePath) -> bool:
        """Whether a folder is an old one in a changed one, so that it has a change of its own or none."""
        changes = self._changes
        return changes is not None and folder.parent in changes.folders and folder not in changes.new

    def _enter(self, folder: RelativePath, below: list[RelativePath]) -> None:
        if folder == self._configuration.backup_dir:
            self._sink.failed(folder, "replaced files go there: exclude it, or name another --backup-dir")
        else:
            below.append(folder)

    def _known(self) -> dict[str, str] | None:
        """The destinations of a folder, and what each is of, "" if that is not meant; None if nobody asks for them."""
        conf, is_caseless = self._configuration, self._key is not str
        is_asked = conf.conversions or is_caseless or (conf.delete and not self._source.traits.is_local)
        return {} if is_asked else None

    def _folder_named(self, path: RelativePath) -> str:
        """A folder as ``known`` has it: an object store may have a file of that name, too."""
        return f"{path}/" if self._target.traits.moves_by_copying else path

    def _note(self, known: dict[str, str], origin: RelativePath, destination: str, *, is_meant: bool) -> bool:
        """Note a destination; False, which is told, if something else is meant to have it already."""
        key = self._key(destination)
        if is_meant and (other := known.get(key)):
            what = f"the target takes its name and that of {other} for one: rename or exclude one"
            if self._key is str:
                what = f"another file of the source becomes {destination}, too: exclude one"
            self._sink.failed(origin, what)
            return False
        known[key] = origin if is_meant else known.get(key, "")
        return True

    def _built(self, file: FileAttributes, known: dict[str, str] | None) -> CopyableFile | None:
        """The copyable file of one that is meant; None if it is not. What filters exclude is known, and so stays."""
        is_meant = self._configuration.filters.takes(file)
        if not is_meant and known is None:
            return None
        try:
            copyable = self._build(file)
        except UnsafeNameError as error:
            if is_meant:
                self._sink.failed(file.path, error.what)
            return None
        if known is not None and not self._note(known, file.path, copyable.destination, is_meant=is_meant):
            return None
        return copyable if is_meant else None

    def _refused(self, folder: RelativePath, entry: Entry, known: dict[str, str] | None) -> None:
        if entry.refused:
            if self._configuration.filters.names(entry.path):
                self._sink.failed(entry.path or folder or "/", entry.refused)
            return
        if known is not None:
            with suppress(UnsafeNameError):  # of such a name the target has nothing
                self._note(known, entry.path, self._build(FileAttributes(entry.path, 0)).destination, is_meant=False)
        self._sink.skipped(entry.kind.value, entry.path, 0)

    def _give(self, batch: list[CopyableFile], file_set: str) -> None:
        if batch:
            if self._is_set and file_set != batch[0].file_set:
                batch = [replace(file, file_set=file_set) for file in batch]
            self._sink.copy(batch)
            if self._file_set is None and self._configuration.grouping is Grouping.FILE:
                for file in batch:
                    self._sink.ended(file.file_set)

    def _one(
        self, copyable: CopyableFile, decisions: Decisions, find: Find, batch: list[CopyableFile], file_set: str
    ) -> None:
        try:
            decision, copyable = decisions.on(copyable, find)
        except UnsafeNameError as error:
            self._sink.failed(copyable.origin.path, error.what)
            return
        except Exception as error:  # each driver has its own errors
            if not self._configuration.compare_content or is_temporary(error):
                raise
            self._unlisted(copyable.origin.path, error, file_set)  # it cannot be read; the others of its folder can
            return
        if decision.is_copied:
            batch.append(copyable)
        else:
            self._sink.skipped(decision.value, copyable.origin.path, copyable.origin.size)

    def _finder(self, folder: RelativePath) -> Find | None:
        """Finds what the target has at a destination in this folder, at the least cost for this kind of store.

        None if the target has no such folder.
        """
        with self._lock:
            is_missing = bool(folder) and folder.parent in self.missing
        entries: dict[RelativePath, Entry] = {}
        if not is_missing and self._target.traits.has_cheap_status:
            found = {folder: self._target.status(folder)}
            is_missing = found[folder] is None
            if folder in self._begins:  # else the folders above were listed before
                found |= {path: self._target.status(path) for path in folder.parent.with_folders()}
            for path, there in found.items():
                if path and there is not None and there.kind is not EntryKind.FOLDER:
                    raise UnsafeNameError(f"{path} is a {there.kind.value} in the target", "Remove it, or exclude it")
        elif not is_missing:
            try:
                entries = {e.attributes.path: e for e in self._target.scan(folder) if e.attributes is not None}
            except FileNotFoundError:
                is_missing = True
        if is_missing:
            with self._lock:
                note_missing(self.missing, folder)
            return None
        return self._target.status if self._target.traits.has_cheap_status else entries.get

    def _extras(self, folder: RelativePath, known: Collection[str] | None) -> None:
        """Files of the target that the copy does not make; what filters exclude stays."""
        try:
            entries = self._target.scan(folder)
            for entry in entries:
                there = entry.attributes
                if there is None or there.path.name == STAGING or there.path == self._configuration.backup_dir:
                    continue
                named = self._folder_named(there.path) if entry.kind is EntryKind.FOLDER else there.path
                if self._key(named) in known if known is not None else self._has(there.path, entry.kind):
                    continue
                if entry.kind is EntryKind.FOLDER:
                    if self._configuration.recursive and self._configuration.filters.enters(there.path):
                        self._extras(there.path, ())
                elif entry.kind is EntryKind.FILE:
                    self._extra(there)
        except FileNotFoundError:
            return

    def _has(self, path: RelativePath, kind: EntryKind) -> bool:
        """Whether the source has what the target has; where a folder is now, an object store still has the file."""
        found = self._source.status(path)
        is_folder_now = found is not None and found.kind is EntryKind.FOLDER and kind is EntryKind.FILE
        return found is not None and not (is_folder_now and self._target.traits.moves_by_copying)

    def _extra(self, there: FileAttributes) -> None:
        """A file of the target that the source does not have. It stays if it may come from one that is excluded."""
        names = origins(there.path, self._configuration.conversions)
        meant = [self._configuration.filters.takes(replace(there, path=name)) for name in names]
        if all(meant):
            self._sink.extra(there)
        elif any(meant):
            self._sink.skipped("perhaps excluded", there.path, there.size)
