"""Compares files with the newest versions that a target keeps of them."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

from blake3 import blake3

from replication.core.copying.attributes import FileAttributes
from replication.core.copying.configuration import CopyConfiguration, Existing
from replication.core.copying.copyable import REPLACES, CopyableFile
from replication.core.copying.difference import Decision, decide
from replication.core.copying.names import RelativePath
from replication.core.copying.versions import VersionName, version_name, version_path
from replication.datasets.stores.base import Store

_PIECE = 1 << 20


class TargetVersions:
    """The newest versions of the files of a target, by one listing for each of its folders; for one thread."""

    def __init__(self, source: Store, target: Store, configuration: CopyConfiguration) -> None:
        self._source, self._target, self._configuration = source, target, configuration
        self._folders: dict[RelativePath, dict[RelativePath, tuple[VersionName, FileAttributes]]] = {}

    def decide(self, file: CopyableFile) -> tuple[Decision, CopyableFile]:
        """Whether a file is copied, and the file with the path of its next version as destination."""
        newest = self._newest(file.destination)
        if newest is None:
            return Decision.NEW, replace(file, destination=version_path(file.destination, 1, file.guid))
        name, there = newest
        decision = decide(
            file.origin,
            there,
            self._configuration.existing,
            keeps_times=self._target.traits.keeps_times and "times" in self._configuration.preserve,
            precision_ns=max(self._source.traits.precision_ns, self._target.traits.precision_ns),
            same_content=self._is_same(file, name, there),
        )
        following = version_path(file.destination, name.number + 1, file.guid)
        return decision, replace(file, destination=following, metadata={**file.metadata, REPLACES: str(there.path)})

    def _is_same(self, file: CopyableFile, name: VersionName, there: FileAttributes) -> bool:
        if name.guid == file.guid[:8]:
            return True
        if not self._configuration.compare_content or self._configuration.existing is Existing.OVERWRITE:
            return False
        return file.origin.size == there.size and content_digest(self._source, file.origin) == content_digest(
            self._target, there
        )

    def _newest(self, path: RelativePath) -> tuple[VersionName, FileAttributes] | None:
        if path.parent not in self._folders:
            self._folders[path.parent] = self._listed(path.parent)
        return self._folders[path.parent].get(path)

    def _listed(self, folder: RelativePath) -> dict[RelativePath, tuple[VersionName, FileAttributes]]:
        found: dict[RelativePath, tuple[VersionName, FileAttributes]] = {}
        try:
            for entry in self._target.scan(folder):
                there = entry.attributes
                name = version_name(there.path) if there is not None else None
                if name is None or there is None:
                    continue
                if name.file not in found or found[name.file][0].number < name.number:
                    found[name.file] = (name, there)
        except FileNotFoundError:
            pass
        return found


def content_digest(store: Store, file: FileAttributes) -> bytes:
    """The BLAKE3 digest of a whole file; OSError or ChangedFileError if it cannot be read whole."""
    digest = blake3()
    with closing(store.open(file)) as reader:
        at = 0
        while data := reader.read(at, _PIECE):
            digest.update(data)
            at += len(data)
    return digest.digest()
