"""Unfinished uploads of S3, of which the store lists at most a thousand at once; redirects, which are not followed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import duckdb
import pytest
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import FileScanTask

from peer.timeline.listing import FolderListings
from replication.core.copying.attributes import FileAttributes
from replication.core.copying.configuration import CopyConfiguration
from replication.core.copying.copyable import CopyableFile
from replication.core.copying.names import RelativePath
from replication.datasets.stores.open import open_store
from replication.datasets.stores.remote import FsspecStore
from replication.datasets.stores.s3 import S3Driver, S3Uploads
from replication.errors import StorageError
from replication.files.store import RemoteStore
from replication.tables.duckdb.views import attach_deletes
from tests.redirecting import served

TOKEN = "x-amz-security-token"
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


class Listing(Pages):
    """A connection to a store that lists one key at once: the prefix ``a/b/``, and the objects ``a/b`` and ``a/c``."""

    def __init__(self) -> None:
        self.asked = 0

    def call_s3(self, method: str, **given: Any) -> dict[str, Any]:
        assert (method, given["Bucket"], given["Delimiter"]) == ("list_objects_v2", "bucket", "/")
        self.asked += 1
        if given["Prefix"] != "a/":
            return {"IsTruncated": False}
        at = int(given.get("ContinuationToken", 0))
        page: list[dict[str, Any]] = [
            {"CommonPrefixes": [{"Prefix": "a/b/"}]},
            {"Contents": [{"Key": "a/b", "Size": 1}]},
            {"Contents": [{"Key": "a/c", "Size": 2}]},
        ]
        return {**page[at], "IsTruncated": at < 2, "NextContinuationToken": str(at + 1)}


def test_a_folder_of_many_objects_is_listed_a_part_at_a_time_and_one_without_any_is_none() -> None:
    listing, driver = Listing(), S3Driver()
    found = driver.entries(listing, "bucket/a")
    first = next(found)
    assert (first["name"], first["type"], listing.asked) == ("bucket/a/b/", "directory", 1)
    assert [(each["name"], each["type"], each["size"]) for each in found] == [
        ("bucket/a/b", "file", 1),
        ("bucket/a/c", "file", 2),
    ]
    assert list(driver.entries(listing, "bucket")) == []
    with pytest.raises(FileNotFoundError):
        next(driver.entries(listing, "bucket/none"))


class Endless(Pages):
    """A connection to a store whose listing goes on, from ``next_page``, for ever."""

    def __init__(self, next_page: dict[str, str]) -> None:
        self._next_page = next_page

    def call_s3(self, method: str, **_: Any) -> dict[str, Any]:
        assert method == "list_objects_v2"
        return {"IsTruncated": True, **self._next_page}


@pytest.mark.parametrize("next_page", [{"NextContinuationToken": "same"}, {"NextContinuationToken": ""}, {}])
def test_a_listing_that_never_gets_further_is_refused(next_page: dict[str, str]) -> None:
    with pytest.raises(OSError, match="does not say where its listing goes on"):
        list(S3Driver().entries(Endless(next_page), "bucket/a"))


class Parts(Pages):
    """A connection to a store that takes as many parts as S3 does, and makes an object of them."""

    def __init__(self) -> None:
        self.parts: dict[int, bytes] = {}
        self.content = b""

    def call_s3(self, method: str, **given: Any) -> dict[str, Any]:
        if method == "upload_part":
            assert given["PartNumber"] <= 10_000, "S3 refuses it"
            self.parts[given["PartNumber"]] = given["Body"]
        elif method == "complete_multipart_upload":
            self.content = b"".join(self.parts[part["PartNumber"]] for part in given["MultipartUpload"]["Parts"])
        return {"UploadId": "1", "ETag": "e"}

    def invalidate_cache(self, path: str) -> None:
        pass


def test_a_file_that_is_twelve_times_as_long_once_unpacked_fits_an_upload(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replication.datasets.stores.s3.PART_BYTES_MIN", 1)
    store, content = Parts(), bytes(range(250)) * 240
    packed = CopyableFile.build("s3://b", FileAttributes(RelativePath("a.gz"), 5000), CopyConfiguration())
    opened = S3Driver().open_writer(store, "bucket/a", packed)
    opened.write(content)
    opened.finish()
    opened.close()
    assert store.content == content and len(content) == 12 * 5000


def test_an_address_that_s3fs_would_cut_is_refused() -> None:  # all files would go to the object before that
    with pytest.raises(StorageError, match=r"cannot be opened: .*leave out \?versionId="):
        open_store("s3://bucket/a?versionId=7")


def test_a_redirect_is_not_followed_so_no_other_server_gets_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("s3fs.core.S3FileSystem.retries", 1)
    path = RelativePath("a")
    with served(lambda: "") as (other, stolen), served(lambda: f"{other}/files/a") as (address, asked):
        given = {"key": "k", "secret": "s", "token": "of the session", "endpoint_url": address}
        with open_store("s3://files", given) as store:
            assert isinstance(store, FsspecStore)
            calls: list[Callable[[], object]] = [
                lambda: store.status(path),
                lambda: store.open(FileAttributes(path, 1, None)),
                lambda: store.keep(path, RelativePath("b")),
            ]
            for call in calls:
                with pytest.raises(Exception, match="redirects to .*, which is not followed"):
                    call()
        assert {"GET", "PUT"} <= {each.command for each in asked if each.headers[TOKEN] == "of the session"}
        assert stolen == []


def with_deletes(path: str) -> FileScanTask:
    """A data file with a file of deletes."""
    kinds = {"content": DataFileContent.POSITION_DELETES, "file_format": FileFormat.PARQUET}
    return FileScanTask(
        DataFile.from_args(file_path="s3://files/a/data"), {DataFile.from_args(file_path=path, **kinds)}
    )


def test_timelines_spilled_files_and_duckdb_follow_no_redirect_with_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("s3fs.core.S3FileSystem.retries", 1)
    given = {"ACCESS_KEY_ID": "k", "SECRET_ACCESS_KEY": "s", "SESSION_TOKEN": "of the session", "MAX_ATTEMPTS": "1"}
    s3fs = pytest.importorskip("s3fs").S3FileSystem
    with served(lambda: "") as (other, stolen), served(lambda: f"{other}/files/a") as (address, asked):
        for name, value in {**given, "ENDPOINT_URL": address}.items():
            monkeypatch.setenv(f"AWS_{name}", value)
        calls: list[Callable[[], object]] = [
            lambda: RemoteStore("s3://files/a").load("b"),
            lambda: FolderListings().files("data", "s3://files/a", "b"),
            lambda: attach_deletes(duckdb.connect(), "deletes", [with_deletes("s3://files/a/b")]),
        ]
        for call in calls:
            s3fs.clear_instance_cache()
            with pytest.raises(Exception, match="redirects to .*, which is not followed"):
                call()
        s3fs.clear_instance_cache()
        assert {each.headers[TOKEN] for each in asked} == {"of the session"}
        assert stolen == []


@pytest.mark.parametrize(
    ("address", "is_secure"),
    [("", True), ("https://far", True), ("http://far:9000", False), ("http://127.0.0.1:9000", True)],
)
def test_a_store_of_s3_that_is_reached_over_http_is_known_not_to_be_encrypted(address: str, is_secure: bool) -> None:
    for options in ({"endpoint_url": address}, {"client_kwargs": {"endpoint_url": address}}) if address else ({},):
        with open_store("s3://lake/x", {"anon": True, "skip_instance_cache": True, **options}) as store:
            assert store.traits.is_secure == is_secure
