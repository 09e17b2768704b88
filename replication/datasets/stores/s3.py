"""S3: large files are uploaded in parts by several threads, and appear when the upload is completed.

Bounds: an open file has ``_PARALLEL`` parts in memory, and so many threads, which are joined when it is closed.
"""

from __future__ import annotations

from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import Any

from replication.core.copying.copyable import CopyableFile
from replication.datasets.stores.drivers import ObjectDriver

PART_BYTES_MIN = 8 << 20
_PARTS = 10_000 // 2  # of a file as long as its listing says; converted ones may be twice as long
_PARALLEL = 4


class S3Driver(ObjectDriver):
    """S3 by s3fs."""

    def open_writer(self, fs: Any, path: str, file: CopyableFile) -> PartsUpload:
        """A new object, written front to back."""
        return PartsUpload(fs, path, max(PART_BYTES_MIN, -(-file.origin.size // _PARTS)))


class PartsUpload:
    """An object that is uploaded in parts at once; it exists from :meth:`finish` on, and not at all without.

    Args:
        fs: of s3fs.
        path: of the object.
        part_bytes: size of each part but the last.
    """

    def __init__(self, fs: Any, path: str, part_bytes: int) -> None:
        self._fs, self._path, self._part_bytes = fs, path, part_bytes
        bucket, key, _ = fs.split_path(path)
        self._at = {"Bucket": bucket, "Key": key}
        self._upload: dict[str, Any] | None = None
        self._buffer = bytearray()
        self._etags: dict[int, str] = {}
        self._running: set[Future[None]] = set()
        self._threads = ThreadPoolExecutor(_PARALLEL, thread_name_prefix="copy-part")
        self._number = 0

    def write(self, data: bytes | memoryview) -> None:
        """Add bytes; waits while ``_PARALLEL`` parts are on their way. Raises what a part failed with."""
        rest = memoryview(data)
        while rest:
            taken = rest[: self._part_bytes - len(self._buffer)]
            self._buffer += taken
            rest = rest[len(taken) :]
            if len(self._buffer) == self._part_bytes:
                self._send()

    def finish(self) -> None:
        """Make the object whole, in place of one that may be there."""
        if self._upload is None:
            self._fs.pipe_file(self._path, bytes(self._buffer))
            return
        if self._buffer:
            self._send()
        self._take_results(wait(self._running).done)
        parts = [{"PartNumber": number, "ETag": etag} for number, etag in sorted(self._etags.items())]
        self._fs.call_s3("complete_multipart_upload", **self._upload, MultipartUpload={"Parts": parts})
        self._upload = None
        self._fs.invalidate_cache(self._path)

    def close(self) -> None:
        """Give up what is not finished, so that the store keeps none of its parts."""
        self._threads.shutdown(cancel_futures=True)
        upload, self._upload = self._upload, None
        if upload is not None:
            with suppress(Exception):  # the store may be away; its rules remove old uploads
                self._fs.call_s3("abort_multipart_upload", **upload)

    def _send(self) -> None:
        if self._upload is None:
            made = self._fs.call_s3("create_multipart_upload", **self._at)
            self._upload = {**self._at, "UploadId": made["UploadId"]}
        while len(self._running) >= _PARALLEL:
            self._take_results(wait(self._running, return_when=FIRST_COMPLETED).done)
        self._number += 1
        part, self._buffer = bytes(self._buffer), bytearray()
        self._running.add(self._threads.submit(self._put, dict(self._upload), self._number, part))

    def _take_results(self, done: set[Future[None]]) -> None:
        self._running -= done
        for each in done:
            each.result()

    def _put(self, upload: dict[str, Any], number: int, part: bytes) -> None:
        answer = self._fs.call_s3("upload_part", **upload, PartNumber=number, Body=part)
        self._etags[number] = answer["ETag"]
