"""GPG on the way: encrypted for a key, decrypted with it, and nothing published that is not whole."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from replication.datasets.converters.plugins import conversions_of, converter_of
from replication.errors import CopyError, RequestError
from tests.copying import copied, read_tree, write_tree

pytestmark = pytest.mark.skipif(shutil.which("gpg") is None, reason="there is no gpg on this machine")
CONTENT = os.urandom(3 << 20)
ENCRYPT = "encrypt=ann@example.org"


@pytest.fixture(scope="module", autouse=True)
def keys() -> Iterator[None]:
    """A key ring of its own, with one key; its path is short, since the agent's socket lies in it."""
    with tempfile.TemporaryDirectory(prefix="gpg") as home, pytest.MonkeyPatch.context() as patch:
        patch.setenv("GNUPGHOME", home)
        made = ["--batch", "--passphrase", "", "--quick-generate-key", "ann@example.org", "future-default"]
        subprocess.run(["gpg", *made], check=True, capture_output=True)
        yield
        subprocess.run(["gpgconf", "--kill", "gpg-agent"], check=False, capture_output=True)


def test_files_are_encrypted_and_decrypted_while_they_are_copied(tmp_path: Path) -> None:
    write_tree(tmp_path / "src", {"a/large": CONTENT, "b": b"small", "c": b""})  # 000-2, 000-9, 000-30
    assert copied(tmp_path / "src", tmp_path / "secret", conversions=(ENCRYPT,)).progress.counts.failures == {}
    secret = read_tree(tmp_path / "secret")
    assert set(secret) == {"a/large.gpg", "b.gpg", "c.gpg"}
    assert not any(b"small" in content for content in secret.values())
    made = copied(tmp_path / "secret", tmp_path / "plain", conversions=("decrypt",), verify=True)
    assert made.progress.counts.failures == {}
    assert read_tree(tmp_path / "plain") == read_tree(tmp_path / "src")
    again = copied(tmp_path / "secret", tmp_path / "plain", conversions=("decrypt",))
    assert again.progress.counts.files_listed == 0


def test_what_was_changed_cut_short_or_is_not_encrypted_is_not_published(tmp_path: Path) -> None:
    whole = b"".join(converter_of(ENCRYPT)([CONTENT], len(CONTENT)))
    changed = whole[: len(whole) // 2] + b"\0\0\0" + whole[len(whole) // 2 + 3 :]
    write_tree(tmp_path / "src", {"a.gpg": changed, "b.gpg": whole[:-100], "c.gpg": b"plain", "d/d.gpg": whole})
    counts = copied(tmp_path / "src", tmp_path / "dst", conversions=("decrypt",)).progress.counts
    assert set(counts.failures) == {"a", "b", "c"}
    assert all("gpg failed" in reason for reason in counts.failures.values())
    assert read_tree(tmp_path / "dst") == {"d/d": CONTENT}


def test_a_message_of_gpg_that_is_not_encrypted_is_not_published(tmp_path: Path) -> None:
    """gpg prints what it holds, and is content."""
    write_tree(tmp_path, {"plain": b"forged"})
    (tmp_path / "src").mkdir()
    for name, made in (("stored", "--store"), ("signed", "--sign")):
        subprocess.run(
            ["gpg", "--batch", "--output", str(tmp_path / f"src/{name}.gpg"), made, str(tmp_path / "plain")], check=True
        )
    counts = copied(tmp_path / "src", tmp_path / "dst", conversions=("decrypt",)).progress.counts
    assert counts.failures == dict.fromkeys(("stored", "signed"), "gpg failed: it is not encrypted")
    assert read_tree(tmp_path / "dst") == {}


def test_an_unknown_key_fails_the_file_with_gpgs_words(tmp_path: Path) -> None:
    write_tree(tmp_path / "src", {"a": b"x"})
    counts = copied(tmp_path / "src", tmp_path / "dst", conversions=("encrypt=nobody@example.org",)).progress.counts
    assert "nobody@example.org" in counts.failures["a.gpg"]


def test_a_stream_that_is_given_up_leaves_no_process(tmp_path: Path) -> None:
    stream = converter_of(ENCRYPT)([CONTENT] * 4, 0)
    next(stream)
    stream.close()
    with pytest.raises(CopyError):
        list(converter_of("decrypt")([b"plain"], 5))


@pytest.mark.parametrize("name", ["encrypt", "encrypt=", "encrypt=--output=/etc/x", "decrypt=x", "rot13"])
def test_a_conversion_that_makes_no_sense_is_refused(name: str) -> None:
    with pytest.raises(RequestError):
        conversions_of([name])
