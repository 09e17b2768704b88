"""CopyConfiguration: how a copy is to be made; one value for datasets, tasks and publication."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from replication.core.copying.conversions import Conversion
from replication.core.copying.filters import Filters
from replication.core.copying.names import RelativePath
from replication.core.copying.rates import parse_rates
from replication.errors import RequestError

PRESERVABLE = ("times", "permissions", "owner", "group", "replication", "block-size")
_LETTERS = dict(zip("tpugrb", PRESERVABLE, strict=True))


class Existing(Enum):
    """Which files of the target are replaced."""

    CHANGED = "changed"  # other size or time
    UPDATE = "update"  # changed, and not newer than the source's
    OVERWRITE = "overwrite"  # all
    SKIP = "skip"  # none


class Grouping(Enum):
    """Which files make a file set, and so are published together."""

    DATASET = "dataset"
    DIRECTORY = "directory"
    FILE = "file"


@dataclass(frozen=True, slots=True)
class CopyConfiguration:
    """How a copy is made.

    Attributes:
        existing: which files of the target are replaced.
        compare_content: compare digests of both sides instead of size and time.
        recursive: also the folders below.
        follow_links: copy what a symbolic link to a file points at; else links are skipped.
        filters: which files of the source are meant; the others are not there for the copy, also not for ``delete``.
        preserve: which of :data:`PRESERVABLE` are kept.
        permission: mode bits of new files if they are not preserved; None leaves the store's default.
        grouping: which files are published together.
        delete: remove files of the target that the source does not have.
        delete_max: refuse to remove more files than this; None sets no limit.
        backup_dir: move replaced and removed files there, below the target's root, instead of removing them.
        verify: read every file back from the target, past the page cache, before it is published; of an upload, which
            cannot be read yet, the store compares each part with its digest.
        replication: copies of each block in the target, where the store has that; overrides what is preserved.
        block_size: in bytes; likewise.
        range_bytes: larger files are copied in ranges of that size, each with a digest of its own.
        files_per_split: the maximum number of small files in one task.
        threads: that copy; 0 chooses: as many as there are cores between local folders or in Spark, else 8.
        limit: of bytes per second over all threads, as :mod:`rates` has it; or ``@FILE``, a file that holds it.
        conversions: in order; each applies to files with its extension.
        attempts: for each file, with growing waits between them.
        versions: write new versions of files beside the old ones; see :mod:`versions`.
        register: who is told of published files, as KIND:NAME; empty for nobody.
        spark: the URL of the Spark master whose tasks copy; empty for threads of this process.
    """

    existing: Existing = Existing.CHANGED
    compare_content: bool = False
    recursive: bool = True
    follow_links: bool = False
    filters: Filters = Filters()
    preserve: frozenset[str] = frozenset({"times", "permissions"})
    permission: int | None = None
    grouping: Grouping = Grouping.DIRECTORY
    delete: bool = False
    delete_max: int | None = None
    backup_dir: RelativePath | None = None
    verify: bool = False
    replication: int | None = None
    block_size: int | None = None
    range_bytes: int = 64 << 20
    files_per_split: int = 128
    threads: int = 0
    limit: str = ""
    conversions: tuple[Conversion, ...] = ()
    attempts: int = 3
    versions: bool = False
    register: str = ""
    spark: str = ""

    def __post_init__(self) -> None:
        """Refuse what excludes each other, and sizes that are none."""
        for name, size in (("range-size", self.range_bytes), ("block-size", self.block_size)):
            if size is not None and size < 1:
                raise RequestError(f"the {name} cannot be {size}", "Give at least one byte, such as 64MiB")
        if self.versions and self.delete:
            raise RequestError("versions and delete exclude each other", "Copy without delete")
        if not self.limit.startswith("@"):
            parse_rates(self.limit)
        if self.register and self.delete:
            raise RequestError("register and delete exclude each other", "Copy without delete")
        if self.spark and (unpacks := [each.text for each in self.conversions if each.unpacks]):
            raise RequestError(f"{unpacks[0]} and spark exclude each other", "Copy without spark")
        if self.spark and self.limit.startswith("@"):
            raise RequestError("executors read no limit from a file of this host", "Give --limit a rate or a timetable")

    def file_set_of(self, destination: RelativePath) -> str:
        """The file set of a destination by :attr:`grouping`."""
        if self.grouping is Grouping.DIRECTORY:
            return destination.parent
        return destination if self.grouping is Grouping.FILE else ""


def parse_preserve(text: str) -> frozenset[str]:
    """``all``, ``none``, names with commas, or letters (``tpugrb``), as a preserve set.

    Raises:
        RequestError: a word is none of :data:`PRESERVABLE`.
    """
    if text in ("all", "none"):
        return frozenset(PRESERVABLE if text == "all" else ())
    found: Iterable[str] = text.split(",")
    if not set(text) - set(_LETTERS):
        found = (_LETTERS[letter] for letter in text)
    names = frozenset(name.strip() for name in found)
    if unknown := names - set(PRESERVABLE):
        raise RequestError(
            f"{', '.join(sorted(unknown))} cannot be preserved", f"Choose of {', '.join(PRESERVABLE)}, or all or none"
        )
    return names
