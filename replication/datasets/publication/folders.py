"""Folders of the target: what new ones get of the source's, those that have no files, and those that removals empty."""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterable, Sequence

from replication.core.copying.attributes import FileAttributes
from replication.core.copying.configuration import CopyConfiguration
from replication.core.copying.names import RelativePath
from replication.datasets.copying.faults import is_full
from replication.datasets.publication.moves import MovedFolder, give
from replication.datasets.stores.base import EntryKind, Store, make_durable
from replication.error_text import one_line

#: Past that many folders that are known to be there, all are forgotten, and asked for anew.
KNOWN_FOLDERS_MAX = 100_000


class NewFolders:
    """Gives new folders of a target the attributes of those of the source, as far as they are preserved."""

    def __init__(
        self,
        target: Store,
        configuration: CopyConfiguration,
        folder_like: Callable[[RelativePath], FileAttributes | None],
    ) -> None:
        self._target, self._folder_like = target, folder_like
        keeps = target.traits.keeps_permissions
        self._preserve = configuration.preserve & {"permissions", "owner", "group"} if keeps else frozenset()

    def given(self, name: RelativePath, path: RelativePath) -> MovedFolder | None:
        """What the folder at ``path`` gets, which is named ``name`` in a move; None if it gets nothing."""
        if not self._preserve or (like := self._folder_like(path)) is None:
            return None
        # its owner, who is this process, must be able to put more into it
        mode = None if like.permission is None else (like.permission | stat.S_IRWXU) & self._target.traits.mode_bits
        return MovedFolder(
            name,
            mode if "permissions" in self._preserve else None,
            like.user if "owner" in self._preserve else "",
            like.group if "group" in self._preserve else "",
        )

    def make(self, folders: Sequence[RelativePath]) -> dict[RelativePath, str]:
        """Make folders that have no files, and those above them, durably; why some could not be made.

        Raises:
            OSError: the target is full.
        """
        made: dict[RelativePath, None] = {}
        failures = {}
        for folder in folders:
            try:
                missing = [p for p in folder.with_folders() if p not in made and self._target.status(p) is None]
                self._target.make_folder(folder)
                for path in missing:
                    made[path] = None
                    if (given := self.given(path, path)) is not None:
                        give(self._target, path, given)
            except Exception as error:  # each driver has its own errors
                if is_full(error):
                    raise
                failures[folder] = one_line(error)
        make_durable(self._target, {path.parent for path in made} | made.keys())
        return failures


class LinkedFolders:
    """Finds links among the folders of a target: what is written below one may lie outside the target.

    A store that needs a request for each status is not asked.
    """

    def __init__(self, target: Store) -> None:
        self._target, self._asks = target, target.traits.has_cheap_status
        self._checked: set[RelativePath] = set()

    def above(self, path: RelativePath) -> RelativePath | None:
        """The folder above a path that is a link; None if none is."""
        there = []
        for folder in path.parent.with_folders() if self._asks else ():
            if folder in self._checked:
                break
            if (found := self._target.status(folder)) is not None and found.kind is EntryKind.LINK:
                return folder
            if found is not None:
                there.append(folder)
        if len(self._checked) > KNOWN_FOLDERS_MAX:
            self._checked.clear()
        self._checked.update(there)
        return None


def emptied(source: Store, removed: Iterable[RelativePath]) -> list[RelativePath]:
    """The folders of files that are removed and that the source does not have, the deepest first."""
    known: dict[RelativePath, bool] = {}
    for path in removed:
        for folder in path.parent.with_folders():
            if folder in known:
                break
            found = source.status(folder)
            known[folder] = found is not None and found.kind is EntryKind.FOLDER
    return sorted((folder for folder, is_there in known.items() if not is_there), key=len, reverse=True)
