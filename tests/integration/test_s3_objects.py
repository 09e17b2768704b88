"""Small objects of S3 by obstore: when it is used, and what its errors become."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import certifi
import pytest
from fsspec import filesystem

from replication.core.copying.names import RelativePath
from replication.datasets.stores.open import open_store
from replication.datasets.stores.s3_objects import SmallObjects
from tests.file_servers import s3_server

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.filterwarnings("ignore:datetime.datetime.utcnow:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.fixture(scope="module")
def options() -> Iterator[dict[str, Any]]:
    with s3_server() as (_, found):
        yield found


def small(options: dict[str, Any], **given: Any) -> SmallObjects | None:
    return SmallObjects.of(filesystem("s3", skip_instance_cache=True, **{**options, **given}))


@pytest.mark.parametrize(
    "given",
    [
        {"endpoint_url": "https://s3.eu-west-1.amazonaws.com"},
        {"anon": True, "key": None, "secret": None},
        {"config_kwargs": {"connect_timeout": 5}},
        {"client_kwargs": {"verify": False}},
        {"s3_additional_kwargs": {"ServerSideEncryption": "AES256"}},
        {"requester_pays": True},
        {"version_aware": True},
    ],
    ids=lambda given: next(iter(given)),
)
def test_what_only_s3fs_knows_is_left_to_it(options: dict[str, Any], given: dict[str, Any]) -> None:
    assert small(options, **given) is None


def test_an_authority_of_ones_own_is_left_to_s3fs(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    assert small(options, endpoint_url="https://storage.example") is not None
    for name in ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE"):
        with monkeypatch.context() as patched:
            patched.setenv(name, certifi.where())
            assert small(options, endpoint_url="https://storage.example") is None
            assert small(options) is not None, "without TLS there is nothing to check"


def test_keys_come_from_the_options_or_the_environment(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    without = {"key": None, "secret": None}
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    assert small(options, **without) is None
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    found = small(options, **without)
    assert found is not None
    found.write("files/by-environment", b"1")
    assert found.read("files/by-environment") == b"1"


def test_an_object_is_written_copied_described_and_read_as_s3fs_has_it(options: dict[str, Any]) -> None:
    fs, found = filesystem("s3", skip_instance_cache=True, **options), small(options)
    assert found is not None
    for name in ("a b", "ü", "a%20b", "q?x#y", "[x]*~", 'x"y<z|'):
        found.write(f"files/small/{name}", b"content")
        found.copy(f"files/small/{name}", f"files/kept/{name}")
        told, theirs = found.info(f"files/kept/{name}"), fs.info(f"files/kept/{name}")
        assert {key: told[key] for key in ("name", "type", "size", "ETag", "LastModified")} == {
            key: theirs[key] for key in ("name", "type", "size", "ETag", "LastModified")
        }
        assert found.read(f"files/kept/{name}") == fs.cat_file(f"files/kept/{name}") == b"content"


def test_what_is_missing_is_a_missing_file_and_a_server_that_is_away_an_error_of_one_line(
    options: dict[str, Any],
) -> None:
    found, away = small(options), small(options, endpoint_url="http://127.0.0.1:1")
    assert found is not None and away is not None
    for missing in (found.read, found.info, lambda path: found.copy(path, "files/kept")):
        with pytest.raises(FileNotFoundError):
            missing("files/missing")
    with pytest.raises(OSError, match=r"^Generic S3 error: .*127\.0\.0\.1:1[^\n]*$"):
        away.write("files/x", b"1")


def test_a_folder_has_a_status_though_it_is_no_object(options: dict[str, Any]) -> None:
    with open_store("s3://files/tree", options) as store:
        found = small(options)
        assert found is not None
        found.write("files/tree/folder/file", b"1")
        entry = store.status(RelativePath("folder"))
        assert entry is not None and entry.kind.name == "FOLDER"
        assert store.status(RelativePath("nothing")) is None
