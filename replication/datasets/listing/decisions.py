"""Decides which files need copying, by what the target has: the file itself, or the newest version that it keeps."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace

from blake3 import blake3

from replication.core.copying.attributes import FileAttributes
from replication.core.copying.configuration import CopyConfiguration, Existing
from replication.core.copying.conversions import applied
from replication.core.copying.copyable import REPLACES, CopyableFile
from replication.core.copying.difference import Decision, decide
from replication.core.copying.names import RelativePath
from replication.core.copying.versions import VersionName, version_name, version_path
from replication.datasets.stores.base import Entry, EntryKind, Store
from replication.errors import UnsafeNameError

_PIECE = 1 << 20

#: Finds what the target has at a destination.
Find = Callable[[RelativePath], Entry | None]
_Versions = dict[RelativePath, tuple[VersionName, FileAttributes]]


class Decisions:
    """Whether files of a source need copying; for one thread. Versions are found by one listing for each folder."""

    def __init__(self, source: Store, target: Store, configuration: CopyConfiguration) -> None:
        self._source, self._target, self._configuration = source, target, configuration
        self._compares = configuration.compare_content and configuration.existing is not Existing.OVERWRITE
        self._versions: dict[RelativePath, _Versions] = {}  # by folder

    def on(self, file: CopyableFile, find: Find | None = None) -> tuple[Decision, CopyableFile]:
        """Whether a file is copied, and the file; reads it and the target's if contents are to be compared.

        Args:
            file: with versions, what is returned has the path of its next version as destination.
            find: asks the target by default; not used with versions.

        Raises:
            UnsafeNameError: the target has a folder of that name, or a version cannot have its name.
        """
        if self._configuration.versions:
            return self._on_version(file)
        entry = (find or self._target.status)(file.destination)
        there = entry.attributes if entry is not None else None
        if entry is not None and entry.kind is EntryKind.FOLDER:
            raise UnsafeNameError("the target has a folder of that name", "Remove it, or exclude the file")
        if entry is not None and there is None and self._configuration.existing is Existing.SKIP:
            return Decision.EXISTS, file  # a link or a special file
        is_converted = bool(applied(file.origin.path, self._configuration.conversions))
        same: bool | None = None
        if there is not None and self._compares and not is_converted:
            same = self._has_same_content(file, there)
        return self._decided(file, there, same, is_converted=is_converted), file

    def _on_version(self, file: CopyableFile) -> tuple[Decision, CopyableFile]:
        newest = self._newest(file.destination)
        if newest is None:
            return Decision.NEW, replace(file, destination=version_path(file.destination, 1, file.guid))
        name, there = newest
        is_same = name.guid == file.guid[:8] or (self._compares and self._has_same_content(file, there))
        following = version_path(file.destination, name.number + 1, file.guid)
        metadata = {**file.metadata, REPLACES: str(there.path)}
        return self._decided(file, there, is_same), replace(file, destination=following, metadata=metadata)

    def _decided(
        self, file: CopyableFile, there: FileAttributes | None, same: bool | None, *, is_converted: bool = False
    ) -> Decision:
        return decide(
            file.origin,
            there,
            self._configuration.existing,
            keeps_times=self._target.traits.keeps_times and "times" in self._configuration.preserve,
            precision_ns=max(self._source.traits.precision_ns, self._target.traits.precision_ns),
            same_content=same,
            is_converted=is_converted,
        )

    def _has_same_content(self, file: CopyableFile, there: FileAttributes) -> bool:
        return file.origin.size == there.size and _digest(self._source, file.origin) == _digest(self._target, there)

    def _newest(self, path: RelativePath) -> tuple[VersionName, FileAttributes] | None:
        if path.parent not in self._versions:
            self._versions[path.parent] = self._listed(path.parent)
        return self._versions[path.parent].get(path)

    def _listed(self, folder: RelativePath) -> _Versions:
        found: _Versions = {}
        with suppress(FileNotFoundError):
            for entry in self._target.scan(folder):
                there = entry.attributes
                name = version_name(there.path) if there is not None else None
                if name is None or there is None:
                    continue
                if name.file not in found or found[name.file][0].number < name.number:
                    found[name.file] = (name, there)
        return found


def _digest(store: Store, file: FileAttributes) -> bytes:
    """The BLAKE3 digest of a whole file; OSError or ChangedFileError if it cannot be read whole."""
    digest = blake3()
    with closing(store.open(file)) as reader:
        at = 0
        while data := reader.read(at, _PIECE):
            digest.update(data)
            at += len(data)
    return digest.digest()
