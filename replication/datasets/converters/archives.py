"""Unpackers of tar and zip."""

from __future__ import annotations

import re
import tarfile
import zipfile
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import IO

from replication.datasets.converters.base import MEMBERS_MAX, ArchiveMember

_SECOND = 1_000_000_000
_HEADER_BYTES_MAX = 1 << 20
_SHARED_MAX = 100  # records for all members, of which each gets a copy
_PAX = (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.XGLTYPE)
_HEADERS = (*_PAX, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
_RECORD, _LONG_NUMBER = re.compile(rb"(\d{1,19}) "), re.compile(rb"\d{300}")


class _Member(tarfile.TarInfo):
    """A member whose headers are checked first: of bad ones tarfile makes thousands of times as much memory."""

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        if self.type in _HEADERS:
            assert archive.fileobj is not None
            if self.size > _HEADER_BYTES_MAX or len(archive.pax_headers) > _SHARED_MAX:
                raise tarfile.ReadError("the header of a member is too large")
            if self.type in _PAX:
                at = archive.fileobj.tell()
                _check_records(archive.fileobj.read(self.size))
                archive.fileobj.seek(at)
        return super()._proc_member(archive)  # type: ignore[misc,no-any-return]  # the types lack it

    def _block(self, count: int) -> int:
        if count < 0:  # tarfile of Python 3.14 would take it for the end
            raise tarfile.ReadError(f"{self.name!r:.300} has a size below zero")
        return super()._block(count)  # type: ignore[misc,no-any-return]


def _check_records(content: bytes) -> None:
    """Raise unless each record of a header ends where it says; of others, each name may be the rest of the header."""
    at = 0
    while found := _RECORD.match(content, at):
        end = at + int(found[1])
        if b"=" not in content[found.end() : end] or content[end - 1 : end] != b"\n":
            break
        at = end
    if content[at:].strip(b"\0") or _LONG_NUMBER.search(content):  # which tarfile reads again for each digit
        raise tarfile.ReadError("the header of a member is damaged")


class Tar:
    """Finds files in tar archives, packed or not."""

    extensions = (".tar", ".tar.gz", ".tgz", ".tar.zst")

    def members(self, file: IO[bytes]) -> Iterator[ArchiveMember]:
        """See ``Unpacker``."""
        archive = tarfile.open(fileobj=file, mode="r:", tarinfo=_Member)  # noqa: SIM115 - lives as long as the file
        files: dict[str, tarfile.TarInfo] = {}
        for info in archive:
            if len(archive.pax_headers) > _SHARED_MAX:
                raise tarfile.ReadError(f"it has more than {_SHARED_MAX} records for all members")
            if info.size < 0:  # it would be read back, without an end
                raise tarfile.ReadError(f"{info.name!r:.300} has a size below zero")
            info.pax_headers = {}
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


class _Listed(list[zipfile.ZipInfo]):
    """The members that a zip archive lists, as they are read: not many more than an archive may have."""

    def append(self, info: zipfile.ZipInfo) -> None:
        if len(self) > MEMBERS_MAX:
            raise zipfile.BadZipFile(f"it has more than {MEMBERS_MAX:,} members")
        super().append(info)


class _ZipFile(zipfile.ZipFile):
    def _RealGetContents(self) -> None:  # noqa: N802 - zipfile's name
        self.filelist = _Listed()
        super()._RealGetContents()  # type: ignore[misc]  # the types lack it


class Zip:
    """Finds files in zip archives."""

    extensions = (".zip",)

    def members(self, file: IO[bytes]) -> Iterator[ArchiveMember]:
        """See ``Unpacker``."""
        archive = _ZipFile(file)
        for info in archive.infolist():
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # they unpack all that is read
                raise zipfile.BadZipFile(f"{info.filename!r:.300} is not packed by deflate, as members must be")
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
