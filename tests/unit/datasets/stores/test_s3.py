"""Unfinished uploads of S3, of which the store lists at most a thousand at once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from replication.core.copying.names import RelativePath
from replication.datasets.stores.s3 import S3Uploads

NOW = datetime(2030, 1, 1, tzinfo=UTC)


class Pages:
    """A connection to a store that lists one upload at once: the keys ``a``, ``a`` and ``ab``."""

    def split_path(self, path: str) -> tuple[str, str, None]:
        bucket, _, key = path.partition("/")
        return bucket, key, None

    def call_s3(self, method: str, **given: Any) -> dict[str, Any]:
        assert (method, given["Bucket"], given["Prefix"]) == ("list_multipart_uploads", "bucket", "a")
        every = [("a", "1"), ("a", "2"), ("ab", "3")]
        at = every.index((given["KeyMarker"], given["UploadIdMarker"])) + 1 if "KeyMarker" in given else 0
        key, number = every[at]
        return {
            "Uploads": [{"Key": key, "UploadId": number, "Initiated": NOW}],
            "IsTruncated": at + 1 < len(every),
            "NextKeyMarker": key,
            "NextUploadIdMarker": number,
        }


def test_uploads_of_a_file_are_found_however_many_the_store_lists_at_once() -> None:
    uploads, second = S3Uploads(Pages(), lambda path: f"bucket/{path}"), timedelta(seconds=1)
    found = uploads.found(RelativePath("a"), NOW - second, NOW + second)
    assert [upload.id for upload in found] == ["1", "2"]
    assert uploads.found(RelativePath("a"), NOW + second, NOW + second) == []
