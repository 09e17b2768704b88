"""What a copy to S3 must not mix up: files edited after they were read, and those that an earlier run has replaced."""

from __future__ import annotations

import gzip
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from replication.core.copying.configuration import Existing
from replication.core.copying.names import RelativePath
from tests.copying import Killed, read_tree, write_tree
from tests.file_servers import s3_server
from tests.integration.test_copy_s3 import Bucket, copy

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.filterwarnings("ignore:datetime.datetime.utcnow:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with s3_server() as (url, options):
        yield Bucket(url, options, tmp_path / "state/walship/copies")


def test_a_file_edited_after_it_was_read_is_not_published_as_newer_than_its_source(
    bucket: Bucket, tmp_path: Path
) -> None:
    write_tree(tmp_path / "src", {"read first": b"old old old", "read last": b"other"})

    def edit(what: str) -> None:
        if what == "pipe_file" and not (tmp_path / "edited").exists():
            (tmp_path / "edited").touch()
            (tmp_path / "src/read first").write_bytes(b"NEW NEW NEW")
            threading.Event().wait(1.2)  # S3 tells whole seconds

    counts = copy(tmp_path / "src", bucket, after=edit, files_per_split=1).run()
    assert counts.failures == {"read first": "read first changed while it was copied"} and not bucket.fs.exists(
        bucket.at("read first")
    )
    assert copy(tmp_path / "src", bucket).run().files_published == 2
    assert bucket.objects() == read_tree(tmp_path / "src") == {"read first": b"NEW NEW NEW", "read last": b"other"}


@pytest.mark.parametrize(("last", "size"), [("copy_object", 11), ("complete_multipart_upload", 5 << 20)])
def test_a_file_edited_before_an_earlier_run_is_finished_is_copied_anew(
    bucket: Bucket, tmp_path: Path, last: str, size: int
) -> None:
    def dying(what: str) -> None:
        if what == last:
            raise Killed

    write_tree(tmp_path / "src", {"edited": b"o" * size, "other": b"other"})
    with pytest.raises(Killed):
        copy(tmp_path / "src", bucket, dying, range_bytes=5 << 20).run()
    write_tree(tmp_path / "src", {"edited": b"N" * size}, int(time.time()) - 2)
    for _ in range(2):
        assert copy(tmp_path / "src", bucket, range_bytes=5 << 20).run().failures == {}
        assert bucket.objects() == read_tree(tmp_path / "src")
    assert bucket.is_clean()


def test_killed_after_a_converted_file_is_in_place_the_next_run_does_not_take_it_for_what_it_has_replaced(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("moto.s3.models.S3_UPLOAD_PART_MIN_SIZE", 1)
    monkeypatch.setattr("replication.datasets.stores.s3.PART_BYTES_MIN", 1 << 10)  # a copy of parts has another ETag
    content = os.urandom(5000)
    write_tree(tmp_path / "src", {"a": content})
    bucket.fs.pipe_file(bucket.at("a.gz"), b"old")

    def dying(what: str) -> None:
        if what == "delete_objects":
            raise Killed

    given: dict[str, Any] = {
        "conversions": ["gzip"],
        "backup_dir": RelativePath("kept"),
        "existing": Existing.OVERWRITE,
    }
    with pytest.raises(Killed):
        copy(tmp_path / "src", bucket, dying, **given).run()
    copy(tmp_path / "src", bucket, **given).finish_earlier()
    found = bucket.objects()
    assert gzip.decompress(found["a.gz"]) == content and found["kept/a.gz"] == b"old"
