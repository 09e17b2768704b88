"""Which files may not be published: those that cannot be registered, and those that were edited meanwhile."""

from __future__ import annotations

from contextlib import suppress

from replication.core.copying.configuration import CopyConfiguration, Existing
from replication.core.copying.names import RelativePath
from replication.datasets.copying.copier import conversions_of
from replication.datasets.copying.file_sets import FileSet, StagedFile
from replication.datasets.publication.recording import overwritten
from replication.datasets.publication.steps import CopySite, PublishFileSet, registered_files
from replication.datasets.registration.base import RefusesNames
from replication.datasets.stores.base import EntryKind, Store
from replication.errors import CopyError

_ASKED_ONE_BY_ONE = 16


def registration_refusal(site: CopySite, registrar: str, step: PublishFileSet) -> CopyError | None:
    """Why the files of a step may not be published; None if they may, or if no registrar is told of them."""
    if not registrar:
        return None
    if over := overwritten(site.target, step.moves):
        what = f"{over[0][1]} is there already, and a registered file is never written over"
        return CopyError(what, "Give new files other names, or say --skip")
    if isinstance(told := site.registrar(registrar), RefusesNames):
        for file in registered_files([step]):
            if reason := told.refusal(site.target.url, file):
                return CopyError(f"{file.path} cannot be registered: {reason}", "Rename it, or exclude it")
    return None


def edited(file_set: FileSet, source: Store, target: Store, conf: CopyConfiguration) -> list[StagedFile]:
    """Files that were edited since they were read, and whose copies the next run would take for newer.

    A server of HTTP is not asked: it may date each answer anew.
    """
    keeps_times = target.traits.keeps_times and "times" in conf.preserve
    if keeps_times or conf.compare_content or conf.versions or conf.existing is Existing.OVERWRITE:
        return []
    if any(each.unpacks for each in conf.conversions) or source.url.startswith(("http://", "https://")):
        return []
    staged = {each.file.origin.path: each for each in file_set.staged}
    folders: dict[RelativePath, list[RelativePath]] = {}
    for path in staged:
        folders.setdefault(path.parent, []).append(path)
    found = []
    with suppress(Exception):  # each driver has its own errors; what is not known is published
        for folder, paths in folders.items():
            is_asked = source.traits.is_local or len(paths) <= _ASKED_ONE_BY_ONE
            for entry in map(source.status, paths) if is_asked else source.scan(folder):
                now = entry.attributes if entry is not None and entry.kind is EntryKind.FILE else None
                each = staged.get(now.path) if now is not None else None
                if now is None or each is None or now.timestamp_ns == each.file.origin.timestamp_ns:
                    continue
                if now.size == each.file.origin.size or conversions_of(each.file, conf):  # else its size tells
                    found.append(each)
    return found
