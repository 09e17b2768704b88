"""Unpackers of tar and zip."""

from __future__ import annotations

import tarfile
import zipfile
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import IO

from replication.datasets.converters.base import ArchiveMember

_SECOND = 1_000_000_000


class Tar:
    """Finds files in tar archives, packed or not."""

    extensions = (".tar", ".tar.gz", ".tgz", ".tar.zst")

    def members(self, file: IO[bytes]) -> Iterator[ArchiveMember]:
        """See ``Unpacker``."""
        archive = tarfile.open(fileobj=file, mode="r:")  # noqa: SIM115 - lives as long as the file
        files: dict[str, tarfile.TarInfo] = {}
        for info in archive:
            content = files.get(info.linkname) if info.islnk() else info  # a hard link is a file once more
            if content is not None and content.isreg():
                files[info.name] = content

            def opened(content: tarfile.TarInfo | None = content) -> IO[bytes]:
                found = archive.extractfile(content) if content is not None else None
                assert found is not None
                return found

            yield ArchiveMember(
                info.name,
                content.size if content is not None else 0,
                int(info.mtime * _SECOND),
                info.mode & 0o777,
                opened if content is not None and content.isreg() else None,
                is_folder=info.isdir(),
                is_link=info.issym() or info.islnk(),
            )
        _check_end(file, archive.offset)


def _check_end(file: IO[bytes], at: int) -> None:
    """Raise if the members do not end with a block of zeros: tarfile takes a bad header for the end."""
    file.seek(at)
    if file.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
        raise tarfile.ReadError("it is cut short, or the header of a member is damaged")


class Zip:
    """Finds files in zip archives."""

    extensions = (".zip",)

    def members(self, file: IO[bytes]) -> Iterator[ArchiveMember]:
        """See ``Unpacker``."""
        archive = zipfile.ZipFile(file)
        for info in archive.infolist():
            mode = info.external_attr >> 16
            is_link = (mode & 0o170000) not in (0, 0o100000, 0o040000)
            try:
                time_ns = int(datetime(*info.date_time, tzinfo=UTC).timestamp()) * _SECOND
            except ValueError:
                time_ns = 0

            def opened(info: zipfile.ZipInfo = info) -> IO[bytes]:
                return archive.open(info)

            yield ArchiveMember(
                info.filename,
                info.file_size,
                time_ns,
                mode & 0o777 or None,
                None if is_link or info.is_dir() else opened,
                is_folder=info.is_dir(),
                is_link=is_link,
            )
