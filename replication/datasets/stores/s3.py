"""S3: large files are uploaded in parts by several threads, and appear when the upload is completed.

Bounds: an open file has ``_PARALLEL`` parts in memory, and as many threads, which are joined when it is closed. Parts
of one of unknown size grow to sixteen times the first.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

from replication.core.copying.copyable import CopyableFile
from replication.core.copying.names import RelativePath
from replication.core.copying.ranges import Range
from replication.datasets.stores.base import Parts, SentUpload, Upload, Uploads
from replication.datasets.stores.drivers import ObjectDriver, WholeObject
from replication.errors import MissingFileError, UnsafeNameError
from replication.files.store import direct
from replication.tls_checks import is_loopback

PART_BYTES_MIN = 8 << 20
_STORE_BYTES_MIN = 5 << 20  # what S3 takes as a part that is not the last
_PARTS_MAX = 10_000
_PARTS = _PARTS_MAX // 2  # of a file as long as its listing says
_GROWN_AFTER = _PARTS_MAX // 5  # parts of twice the size follow: converted files may be twelve times as long
_PARALLEL = 4
_REMOVED_MAX = 1000  # by one request
_TOKEN = "walship-upload"  # in the metadata of an object
_VERSION = "?versionId="  # what is behind it, s3fs takes for no part of the key
_TOO_LARGE = {"InvalidRequest", "EntityTooLarge"}
_LOST = {"NoSuchUpload", "InvalidPart", "InvalidPartOrder"}


class S3Driver(ObjectDriver):
    """S3 by s3fs."""

    removes_absent = True

    def opening(self, url: str, options: dict[str, Any]) -> dict[str, Any]:
        """No redirect is followed. ValueError for an address that s3fs would cut."""
        if _VERSION in url:
            raise ValueError(f"s3fs would leave out {_VERSION} and what follows")
        there = urlsplit(options.get("endpoint_url") or options.get("client_kwargs", {}).get("endpoint_url") or "")
        if there.scheme == "http" and not is_loopback(there.hostname or ""):
            self.traits = replace(self.traits, is_secure=False)
        config = {**direct(url)["config_kwargs"], **options.get("config_kwargs", {})}
        return {**super().opening(url, options), "config_kwargs": config}

    def named(self, path: RelativePath) -> str:
        """UnsafeNameError for what s3fs would take for another object."""
        if _VERSION in path:
            what = f"the name {str(path)!r:.300} is refused: s3fs would leave out {_VERSION} and what follows"
            raise UnsafeNameError(what, "Rename the file, or exclude it")
        return super().named(path)

    def entries(self, fs: Any, path: str) -> Iterator[dict[str, Any]]:
        """The objects and prefixes of one level, streamed. s3fs would hold them all in memory."""
        bucket, key, _ = fs.split_path(path)
        given = {"Bucket": bucket, "Prefix": f"{key}/" if key else "", "Delimiter": "/"}
        is_there = not key
        while True:
            answer = fs.call_s3("list_objects_v2", **given)
            for each in answer.get("CommonPrefixes", ()):
                is_there = True
                yield {"name": f"{bucket}/{each['Prefix']}", "size": 0, "type": "directory"}
            for each in answer.get("Contents", ()):
                is_there = True
                yield {**each, "name": f"{bucket}/{each['Key']}", "size": each["Size"], "type": "file"}
            if not answer.get("IsTruncated"):
                break
            page, given["ContinuationToken"] = given.get("ContinuationToken"), answer.get("NextContinuationToken")
            if given["ContinuationToken"] in (None, "", page):
                raise OSError(f"{path}: the store does not say where its listing goes on")
        if not is_there:
            raise FileNotFoundError(path)

    def timestamp_ns(self, info: dict[str, Any]) -> int | None:
        """Whole seconds, as one object's attributes have them; the listings of MinIO and Ceph have milliseconds."""
        found = super().timestamp_ns(info)
        return None if found is None else found // self.traits.precision_ns * self.traits.precision_ns

    def open_writer(self, fs: Any, path: str, file: CopyableFile) -> WholeUpload:
        return WholeUpload(fs, path, max(PART_BYTES_MIN, -(-file.origin.size // _PARTS)))

    def open_reader(self, fs: Any, path: str, size: int) -> Any:
        """A small object in one request: s3fs would ask for its size first."""
        if size <= PART_BYTES_MIN:
            return WholeObject(fs.cat_file(path, max_concurrency=1))
        return super().open_reader(fs, path, size)

    def keep(self, fs: Any, path: str, kept: str) -> None:
        """Copy it in the store. s3fs, which copies more than 5 GiB in parts, asks for the size before each copy."""
        (bucket, key, _), (new_bucket, new_key, _) = fs.split_path(path), fs.split_path(kept)
        try:
            fs.call_s3("copy_object", CopySource={"Bucket": bucket, "Key": key}, Bucket=new_bucket, Key=new_key)
        except OSError as error:
            if _code(error) not in _TOO_LARGE:
                raise
            fs.cp_file(path, kept)
        fs.invalidate_cache(fs._parent(kept))

    def remove(self, fs: Any, paths: Sequence[str]) -> None:
        """Remove up to a thousand objects by one request."""
        for begin in range(0, len(paths), _REMOVED_MAX):
            named = [fs.split_path(path)[:2] for path in paths[begin : begin + _REMOVED_MAX]]
            objects = [{"Key": key} for _, key in named]
            answer = fs.call_s3("delete_objects", Bucket=named[0][0], Delete={"Objects": objects, "Quiet": True})
            for failed in answer.get("Errors", ()):
                raise OSError(f"{failed['Key']} was not removed: {failed['Code']}: {failed['Message']}")

    def uploads(self, fs: Any, address: Callable[[RelativePath], str]) -> Uploads:
        return S3Uploads(fs, address)


class S3Uploads:
    """``Uploads`` of one root."""

    def __init__(self, fs: Any, address: Callable[[RelativePath], str]) -> None:
        self._fs, self._address = fs, address

    def takes(self, size: int, range_bytes: int) -> bool:
        return range_bytes >= _STORE_BYTES_MIN and -(-size // range_bytes) <= _PARTS_MAX

    def begin(self, path: RelativePath) -> Upload:
        token = uuid4().hex
        made = self._fs.call_s3("create_multipart_upload", **self._at(path), Metadata={_TOKEN: token})
        return Upload(path, made["UploadId"], token)

    def open(self, upload: Upload, part: Range, size: int, range_bytes: int, *, checked: bool) -> PartsSender:
        """See ``Uploads``. A range is several parts, if they are large enough then."""
        ranges = -(-size // range_bytes)
        pieces = max(1, min(range_bytes // PART_BYTES_MIN, _PARTS_MAX // ranges))
        return PartsSender(
            self._fs, self._named(upload), -(-range_bytes // pieces), part.index * pieces + 1, checked=checked
        )

    def parts(self, upload: Upload) -> Parts | None:
        found: list[tuple[int, str]] = []
        marker = 0
        while True:
            try:
                answer = self._fs.call_s3("list_parts", **self._named(upload), PartNumberMarker=marker)
            except FileNotFoundError:
                return None
            found += [(int(each["PartNumber"]), _bare(each["ETag"])) for each in answer.get("Parts", ())]
            if not answer.get("IsTruncated"):
                return tuple(found)
            marker = int(answer["NextPartNumberMarker"])

    def complete(self, sent: SentUpload) -> None:
        upload = sent.upload
        try:
            _complete(self._fs, self._named(upload), sent.parts)
        except OSError as error:
            if not self.is_completed(upload):  # the answer to an earlier call may have been lost
                if _code(error) not in _LOST and self.parts(upload) is not None:
                    raise
                raise MissingFileError(
                    f"the store no longer has what was uploaded for {upload.path}",
                    "The next run copies it anew; see that nothing removes unfinished uploads meanwhile",
                ) from error
        self._fs.invalidate_cache(self._address(RelativePath(upload.path)))

    def is_completed(self, upload: Upload, size: int = -1) -> bool:
        """See ``Uploads``. The metadata of the object tell, without a size by the token alone."""
        try:
            found = self._fs.call_s3("head_object", **self._at(RelativePath(upload.path)))
        except FileNotFoundError:
            return False
        return found["Metadata"].get(_TOKEN) == upload.token and size in (-1, found["ContentLength"])

    def abort(self, upload: Upload) -> None:
        with suppress(FileNotFoundError):
            self._fs.call_s3("abort_multipart_upload", **self._named(upload))

    def found(self, path: RelativePath, since: datetime, until: datetime) -> list[Upload]:
        at = self._at(path)
        found: list[Upload] = []
        begin: dict[str, str] = {}
        while True:
            answer = self._fs.call_s3("list_multipart_uploads", Bucket=at["Bucket"], Prefix=at["Key"], **begin)
            found += [
                Upload(path, each["UploadId"], "")
                for each in answer.get("Uploads", ())
                if each["Key"] == at["Key"] and since <= each["Initiated"] <= until
            ]
            if not answer.get("IsTruncated"):
                return found
            begin = {"KeyMarker": answer["NextKeyMarker"], "UploadIdMarker": answer["NextUploadIdMarker"]}

    def _at(self, path: RelativePath) -> dict[str, Any]:
        bucket, key, _ = self._fs.split_path(self._address(path))
        return {"Bucket": bucket, "Key": key}

    def _named(self, upload: Upload) -> dict[str, Any]:
        return {**self._at(RelativePath(upload.path)), "UploadId": upload.id}


class PartsSender:
    """Sends bytes as parts of an upload, several at once; see ``PartsWriter``.

    ``part_bytes`` is the size of each part but the last, ``first`` the number of the first. ``checked``: the store
    compares each part with its MD5. ``grows``: later parts are larger, since nobody knows how many there will be.
    """

    def __init__(
        self,
        fs: Any,
        upload: dict[str, Any],
        part_bytes: int,
        first: int = 1,
        *,
        checked: bool = False,
        grows: bool = False,
    ) -> None:
        self._fs, self._upload, self._part_bytes, self._checked = fs, upload, part_bytes, checked
        self._grows = grows
        self._buffer = bytearray()
        self._etags: dict[int, str] = {}
        self._running: set[Future[None]] = set()
        self._threads = ThreadPoolExecutor(_PARALLEL, thread_name_prefix="copy-part")
        self._number = first

    def write(self, begin: int, data: bytes | memoryview) -> None:
        """Add bytes; waits while ``_PARALLEL`` parts are on their way. Raises what a part failed with."""
        rest = memoryview(data)
        while rest:
            taken = rest[: self._part_bytes - len(self._buffer)]
            self._buffer += taken
            rest = rest[len(taken) :]
            if len(self._buffer) == self._part_bytes:
                self._send()

    def flush(self) -> Parts:
        """Send what is left, and wait for all parts."""
        if self._buffer:
            self._send()
        self._take_results(wait(self._running).done)
        return tuple(sorted(self._etags.items()))

    def close(self) -> None:
        """End the threads; parts that are on their way arrive or fail first."""
        self._threads.shutdown(cancel_futures=True)

    def _send(self) -> None:
        while len(self._running) >= _PARALLEL:
            self._take_results(wait(self._running, return_when=FIRST_COMPLETED).done)
        part, self._buffer = bytes(self._buffer), bytearray()
        self._running.add(self._threads.submit(self._put, self._number, part))
        if self._grows and self._number % _GROWN_AFTER == 0:
            self._part_bytes *= 2
        self._number += 1

    def _take_results(self, done: set[Future[None]]) -> None:
        self._running -= done
        for each in done:
            each.result()

    def _put(self, number: int, part: bytes) -> None:
        given = {"ContentMD5": b64encode(hashlib.md5(part).digest()).decode()} if self._checked else {}
        answer = self._fs.call_s3("upload_part", **self._upload, **given, PartNumber=number, Body=part)
        self._etags[number] = _bare(answer["ETag"])


class WholeUpload:
    """An object of unknown size; it exists from :meth:`finish` on, and not at all without.

    One that is smaller than a part is one request.
    """

    def __init__(self, fs: Any, path: str, part_bytes: int) -> None:
        self._fs, self._path, self._part_bytes = fs, path, part_bytes
        bucket, key, _ = fs.split_path(path)
        self._at = {"Bucket": bucket, "Key": key}
        self._begin = bytearray()
        self._upload: dict[str, Any] | None = None
        self._sender: PartsSender | None = None

    def write(self, data: bytes | memoryview) -> None:
        """Add bytes. Raises what a part failed with."""
        if self._sender is None:
            self._begin += data
            if len(self._begin) < self._part_bytes:
                return
            made = self._fs.call_s3("create_multipart_upload", **self._at)
            self._upload = {**self._at, "UploadId": made["UploadId"]}
            self._sender = PartsSender(self._fs, self._upload, self._part_bytes, grows=True)
            data, self._begin = bytes(self._begin), bytearray()
        self._sender.write(0, data)

    def finish(self) -> None:
        """Make the object whole, in place of one that may be there."""
        if self._sender is None or self._upload is None:
            self._fs.pipe_file(self._path, bytes(self._begin))
            return
        _complete(self._fs, self._upload, self._sender.flush())
        self._upload = None
        self._fs.invalidate_cache(self._path)

    def close(self) -> None:
        """Give up what is not finished, so that the store keeps none of its parts."""
        if self._sender is not None:
            self._sender.close()
        upload, self._upload = self._upload, None
        if upload is not None:
            with suppress(Exception):  # the store may be away; its rules remove old uploads
                self._fs.call_s3("abort_multipart_upload", **upload)


def _complete(fs: Any, upload: dict[str, Any], parts: Parts) -> None:
    given = [{"PartNumber": number, "ETag": f'"{etag}"'} for number, etag in parts]
    fs.call_s3("complete_multipart_upload", **upload, MultipartUpload={"Parts": given})


def _bare(etag: str) -> str:
    return etag.strip('"')


def _code(error: OSError) -> str:
    """What S3 calls an error."""
    answer = getattr(error.__cause__, "response", None) or {}
    return str(answer.get("Error", {}).get("Code", ""))
