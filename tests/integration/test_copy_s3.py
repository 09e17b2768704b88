"""A copy to S3: large files are uploaded in parts to where they go, and completing the upload publishes them."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from replication.core.copying.configuration import CopyConfiguration
from replication.core.copying.names import STAGING, RelativePath
from replication.datasets.copying.journal import CopyJournal
from replication.datasets.job import CopyJob
from replication.datasets.stores.local import LocalStore
from replication.datasets.stores.open import open_store
from replication.datasets.stores.remote import FsspecStore
from replication.datasets.two_way.sync import TwoWaySync
from replication.files.boot import boot_id
from tests.copying import Killed, job, read_tree, write_tree
from tests.file_servers import s3_server

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.filterwarnings("ignore:datetime.datetime.utcnow:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

PART_MIN = 5 << 20  # of S3
RANGE = 16 << 10  # where the server takes smaller parts, too
LARGE = os.urandom(RANGE + 1000)
OLD = {"a/large": b"old", "a/small": b"old small"}
NEW = {"a/large": LARGE, "a/other": LARGE[::-1], "a/small": b"another small one"}
CHANGES = {"pipe_file", "cp_file", "rm_file"}
READS = {"head_object", "list_objects_v2", "list_parts", "list_multipart_uploads"}


class Bucket:
    """A new prefix of the server's bucket, and what lies there."""

    def __init__(self, url: str, options: dict[str, Any], state: Path) -> None:
        self.url, self.options, self.state = f"{url}/{uuid4().hex}", options, state
        self.fs = self.store()._first

    def store(self) -> FsspecStore:
        opened = open_store(self.url, self.options)
        assert isinstance(opened, FsspecStore)
        return opened

    def at(self, path: str = "") -> str:
        return f"{self.url}/{path}".removeprefix("s3://").rstrip("/")

    def objects(self) -> dict[str, bytes]:
        names = self.fs.find(self.at())
        return {name.removeprefix(f"{self.at()}/"): self.fs.cat_file(name) for name in names}

    def uploads(self) -> list[dict[str, Any]]:
        bucket, key, _ = self.fs.split_path(self.at())
        found: list[dict[str, Any]] = self.fs.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=key).get(
            "Uploads", []
        )
        return found

    def is_clean(self) -> bool:
        """Whether no upload, and nothing of an unfinished copy, is left."""
        journals = [CopyJournal(path, boot_id()) for path in self.state.glob("*/journal.db")]
        for journal in journals:
            journal.close()
        return not self.uploads() and len(journals) == 1 and journals[0].is_empty

    def abort_all(self) -> None:
        for each in self.uploads():
            given = {"Bucket": self.at().split("/")[0], "Key": each["Key"], "UploadId": each["UploadId"]}
            self.fs.call_s3("abort_multipart_upload", **given)


class Watched:
    """s3fs, of which ``before`` and ``after`` are told the name of each call that changes something."""

    def __init__(self, fs: Any, before: Callable[[str], None], after: Callable[[str], None]) -> None:
        self._watched, self._before, self._after = fs, before, after

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._watched, name)
        if name not in CHANGES and name != "call_s3":
            return found

        def called(*given: Any, **named: Any) -> Any:
            what = given[0] if name == "call_s3" else name
            if what in READS:
                answer = found(*given, **named)
                for each in answer.get("Uploads", ()):
                    each["Initiated"] = datetime.now(UTC)  # moto says 2010
                return answer
            self._before(what)
            answer = found(*given, **named)
            self._after(what)
            return answer

        return called


def nothing(what: str) -> None:
    pass


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, dict[str, Any]]]:
    with s3_server() as found:
        yield found


@pytest.fixture
def bucket(server: tuple[str, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    url, options = server
    return Bucket(url, options, tmp_path / "state/walship/copies")


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of some KiB are large ones."""
    monkeypatch.setattr("moto.s3.models.S3_UPLOAD_PART_MIN_SIZE", 1)
    monkeypatch.setattr("replication.datasets.stores.s3._STORE_BYTES_MIN", 1)
    for module in ("job", "copying.copier", "copying.stager"):
        monkeypatch.setattr(f"replication.datasets.{module}.SMALL_BYTES_MAX", 1 << 10)


def copy(
    source: Path,
    bucket: Bucket,
    before: Callable[[str], None] = nothing,
    after: Callable[[str], None] = nothing,
    **given: Any,
) -> CopyJob:
    store = bucket.store()
    store._first = Watched(store._first, before, after)
    return job(LocalStore(str(source)), store, **{"range_bytes": RANGE, "threads": 1, **given})


def test_a_large_file_is_published_by_completing_its_upload_and_is_copied_nowhere(
    bucket: Bucket, tmp_path: Path
) -> None:
    new = {**NEW, "a/large": os.urandom(PART_MIN + 1000), "a/other": os.urandom(PART_MIN * 2)}
    write_tree(tmp_path / "src", new)  # 000-20, 000-33, 000-38, 000-41
    calls: list[str] = []
    seen: list[bool] = []

    def before(what: str) -> None:
        calls.append(what)
        if what == "complete_multipart_upload":
            seen.append(bucket.fs.exists(bucket.at("a/other")))

    counts = copy(tmp_path / "src", bucket, before, range_bytes=PART_MIN).run()
    assert (counts.failed, counts.files_published) == (0, 3)
    assert bucket.objects() == new
    assert False in seen, "no file is seen before its upload is completed"
    assert Counter(calls) == {
        "create_multipart_upload": 2,
        "upload_part": 4,
        "complete_multipart_upload": 2,
        "pipe_file": 1,
        "copy_object": 1,
        "delete_objects": 1,
    }, "only the small file is staged"
    assert copy(tmp_path / "src", bucket).run().files_listed == 0


def test_a_small_file_takes_two_requests_to_a_bucket_and_one_from_it_and_several_are_published_at_once(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {f"a/{number}": b"%d" % number for number in range(24)}
    write_tree(tmp_path / "src", files)
    requests: Counter[str] = Counter()
    call = type(bucket.fs)._call_s3

    async def counted(fs: Any, method: str, *given: Any, **named: Any) -> Any:
        requests[method] += 1
        return await call(fs, method, *given, **named)

    monkeypatch.setattr(type(bucket.fs), "_call_s3", counted)
    together = threading.Barrier(4, timeout=120)

    def before(what: str) -> None:
        if what == "copy_object":
            together.wait()
        requests[what] += 1

    counts = copy(tmp_path / "src", bucket, before).run()
    assert (counts.failed, counts.files_published) == (0, 24)
    assert requests["put_object"] == requests["copy_object"] == 24
    assert requests["delete_objects"] == 1 and not requests["delete_object"]
    assert requests["head_object"] + requests["list_objects_v2"] < 16
    requests.clear()
    counts = job(bucket.store(), LocalStore(str(tmp_path / "back"))).run()
    assert (counts.failed, counts.files_published) == (0, 24)
    assert requests["get_object"] == 24 and requests["head_object"] < 8
    assert read_tree(tmp_path / "back") == files


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("when", ["before", pytest.param("after", marks=pytest.mark.slow)])
def test_killed_at_any_change_of_the_store_each_file_is_old_or_new_and_the_next_run_ends_it(
    bucket: Bucket, tmp_path: Path, when: str
) -> None:
    # 000-35, 000-36, 000-37, 002-2, 002-3, 002-7
    source, given = tmp_path / "src", {"backup_dir": RelativePath("kept")}
    write_tree(source, NEW)
    for number in count():
        for name in bucket.objects():
            bucket.fs.rm_file(bucket.at(name))
        for name, content in OLD.items():
            bucket.fs.pipe_file(bucket.at(name), content)
        left, lock = count(number, -1), threading.Lock()

        def dying(what: str, left: Any = left, lock: Any = lock) -> None:
            with lock:
                if next(left) <= 0:
                    raise Killed

        try:
            copy(source, bucket, **{when: dying}, **given).run()
            survived = True
        except Killed:
            survived = False
        for name, content in bucket.objects().items():
            if not name.startswith((STAGING, "kept")):
                assert content in (OLD.get(name), NEW.get(name)), f"{name} is torn when killed {when} change {number}"
        counts = copy(source, bucket, **given).run()
        assert counts.failed == 0, (number, counts.failures)
        kept = {f"kept/{name}": content for name, content in OLD.items()}
        assert bucket.objects() == NEW | kept, f"killed {when} change {number}"
        assert bucket.is_clean(), number
        if survived:
            break
    assert number > 10


@pytest.mark.usefixtures("small_parts")
def test_a_killed_copy_goes_on_with_the_parts_that_the_store_has(bucket: Bucket, tmp_path: Path) -> None:
    content = os.urandom(RANGE * 4)  # 001-4, 001-30, 000-16
    write_tree(tmp_path / "src", {"large": content})
    sent = count(1)

    def dying(what: str) -> None:
        if what == "upload_part" and next(sent) == 3:
            raise Killed

    with pytest.raises(Killed):
        copy(tmp_path / "src", bucket, dying).run()
    assert len(bucket.uploads()) == 1 and not bucket.objects()
    counts = copy(tmp_path / "src", bucket).run()
    assert (counts.bytes_reused, counts.bytes_copied) == (2 * RANGE, 2 * RANGE)
    assert bucket.objects() == {"large": content}


@pytest.mark.usefixtures("small_parts")
def test_an_upload_that_somebody_gave_up_fails_its_file_set_and_the_next_run_copies_it_anew(
    bucket: Bucket, tmp_path: Path
) -> None:
    write_tree(tmp_path / "src", NEW | {"b/1": b"one"})  # 000-21, 000-34, 000-36, 002-4

    def aborting(what: str) -> None:
        if what == "pipe_file":  # small files are staged last
            bucket.abort_all()

    bucket.fs.pipe_file(bucket.at("a/large"), OLD["a/large"])
    counts = copy(tmp_path / "src", bucket, aborting).run()
    assert set(counts.failures) == set(NEW)
    assert "no longer has what was uploaded" in counts.failures["a/other"]
    assert {name for name in bucket.objects() if not name.startswith(STAGING)} == {"a/large", "b/1"}
    assert bucket.objects()["a/large"] == OLD["a/large"], "nothing of its file set is published"
    assert copy(tmp_path / "src", bucket).run().failed == 0
    assert bucket.objects() == NEW | {"b/1": b"one"}
    assert bucket.is_clean()


@pytest.mark.usefixtures("small_parts")
def test_a_stored_publication_whose_upload_is_gone_is_given_up_by_the_next_run_which_copies_anew(
    bucket: Bucket, tmp_path: Path
) -> None:
    write_tree(tmp_path / "src", {"large": LARGE})

    def dying(what: str) -> None:
        if what == "complete_multipart_upload":
            raise Killed

    with pytest.raises(Killed):
        copy(tmp_path / "src", bucket, dying).run()
    bucket.abort_all()
    bucket.fs.pipe_file(bucket.at("large"), b"of somebody else")
    counts = copy(tmp_path / "src", bucket).run()
    assert (counts.failed, counts.bytes_copied) == (0, len(LARGE))
    assert bucket.objects() == {"large": LARGE}


@pytest.mark.usefixtures("small_parts")
def test_a_completed_upload_whose_answer_was_lost_is_found_completed_and_not_read(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tree(tmp_path / "src", {"large": LARGE})

    def dying(what: str) -> None:
        if what == "complete_multipart_upload":
            raise Killed

    with pytest.raises(Killed):
        copy(tmp_path / "src", bucket, after=dying).run()
    calls: list[str] = []
    monkeypatch.setattr(FsspecStore, "reread", lambda *_: pytest.fail("metadata tell that it is there"))
    counts = copy(tmp_path / "src", bucket, calls.append).run()
    assert (counts.failed, counts.bytes_copied) == (0, 0)
    assert set(calls) <= {"abort_multipart_upload"}, "nothing is uploaded or completed again"
    assert bucket.objects() == {"large": LARGE}


@pytest.mark.usefixtures("small_parts")
def test_uploads_of_a_file_that_changed_are_given_up_at_the_end(bucket: Bucket, tmp_path: Path) -> None:
    for number, killed_at in enumerate(("upload_part", "create_multipart_upload")):
        write_tree(tmp_path / "src", {"large": LARGE}, 1_700_000_000 + number)

        def dying(what: str, killed_at: str = killed_at) -> None:
            if what == killed_at:
                raise Killed

        with pytest.raises(Killed):
            copy(tmp_path / "src", bucket, after=dying).run()
    assert len(bucket.uploads()) == 2
    write_tree(tmp_path / "src", {"large": LARGE[::-1]}, 1_700_000_500)
    assert copy(tmp_path / "src", bucket).run().failed == 0
    assert bucket.objects() == {"large": LARGE[::-1]}
    assert bucket.is_clean()


@pytest.mark.usefixtures("small_parts")
def test_the_store_compares_each_part_with_its_md5_if_files_are_verified(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tree(tmp_path / "src", {"large": LARGE})  # 000-11
    made = copy(tmp_path / "src", bucket, verify=True)
    assert isinstance(made.target, FsspecStore)
    given: list[dict[str, Any]] = []
    watched = made.target._first._watched
    call = watched.call_s3

    def told(method: str, **named: Any) -> Any:
        given.append({"method": method, **named})
        return call(method, **named)

    monkeypatch.setattr(watched, "call_s3", told)
    assert made.run().failed == 0
    assert all("ContentMD5" in each for each in given if each["method"] == "upload_part")


def test_a_store_that_lists_times_to_the_millisecond_is_read_and_synced_as_any_other(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MinIO and Ceph do, and tell of one object whole seconds as all do."""
    driver: Any = import_module("s3fs").S3FileSystem
    call = driver.call_s3

    def precise(self: Any, method: str, **given: Any) -> Any:
        answer = call(self, method, **given)
        for each in answer.get("Contents", ()) if method == "list_objects_v2" else ():
            each["LastModified"] = each["LastModified"].replace(microsecond=678_000)
        return answer

    monkeypatch.setattr(driver, "call_s3", precise)
    large = os.urandom((8 << 20) + 1)  # a smaller one comes by one answer
    bucket.fs.pipe_file(bucket.at("a/large"), large)
    bucket.fs.pipe_file(bucket.at("a/small"), b"small")
    with bucket.store() as source:
        assert job(source, LocalStore(str(tmp_path / "dst"))).run().failures == {}
    assert read_tree(tmp_path / "dst") == {"a/large": large, "a/small": b"small"}

    first = tmp_path / "first"
    for content in (b"one", b"two, longer"):
        write_tree(first, {"a/new": content}, time_s=1_700_000_000 + len(content))
        with bucket.store() as second:
            assert TwoWaySync(LocalStore(str(first)), second, CopyConfiguration()).run().failures == {}
        assert bucket.objects()["a/new"] == content
    with bucket.store() as second:
        assert TwoWaySync(LocalStore(str(first)), second, CopyConfiguration()).run().actions == Counter({"same": 3})


def test_a_name_that_s3fs_takes_for_the_version_of_another_object_replaces_none(bucket: Bucket, tmp_path: Path) -> None:
    write_tree(tmp_path / "src", {"a/day": b"day", "b/day?versionId=2": b"another"})
    bucket.fs.pipe_file(bucket.at("b/day"), b"old")
    counts = copy(tmp_path / "src", bucket).run()
    assert bucket.objects() == {"a/day": b"day", "b/day": b"old"}
    assert "?versionId=" in counts.failures["b/day?versionId=2"]
