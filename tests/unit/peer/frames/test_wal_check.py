"""WAL files looked at offline."""

from hashlib import sha256
from pathlib import Path
from uuid import NAMESPACE_OID, uuid5

import pytest

from peer.frames.check import Checked, check_file, open_wal
from replication.core.frame import (
    FILE_HEADER_BYTES,
    ZERO_HASH,
    Codec,
    FrameKind,
    SealedHeader,
    encode_envelope,
    encode_file_header,
    encode_sealed_header,
    stream_hash,
)
from replication.core.ids import ClusterId, FileId
from replication.errors import MissingFileError

FILE = FileId(ClusterId("east", uuid5(NAMESPACE_OID, "east")), "h0", 1)
GOLDEN = Path(__file__).parents[2] / "golden" / "version1.wal"


def test_a_good_file_has_no_problems():
    checked = check_file(GOLDEN)
    assert checked.problems == ()
    assert checked.closed and checked.frames > 0 and checked.file is not None


def test_frames_tile_the_file_up_to_its_end_record():
    with open_wal(GOLDEN) as view:
        at = FILE_HEADER_BYTES
        for frame in view.frames():
            assert frame.begin == at
            at = frame.end
        assert at == view.length


@pytest.mark.parametrize("where", ["file header", "envelope", "sealed header", "payload", "end record"])
def test_one_flipped_bit_anywhere_is_found(tmp_path, where):
    content = bytearray(GOLDEN.read_bytes())
    with open_wal(GOLDEN) as view:
        frame = next(f for f in view.frames() if f.header.payload_bytes)
        places = {
            "file header": 20,
            "envelope": frame.begin + 6,
            "sealed header": frame.sealed_begin + 40,
            "payload": frame.payload_begin + frame.header.payload_bytes // 2,
            "end record": view.length + 10,
        }
    content[places[where]] ^= 0x10
    (tmp_path / "bad.wal").write_bytes(content)
    assert check_file(tmp_path / "bad.wal").problems, where


def test_a_file_without_an_end_record_is_open_and_checked_up_to_its_last_whole_frame(tmp_path):
    with open_wal(GOLDEN) as view:
        frames = list(view.frames())
    cut = frames[-1].begin + 10
    (tmp_path / "open.wal").write_bytes(GOLDEN.read_bytes()[:cut])
    checked = check_file(tmp_path / "open.wal")
    assert not checked.closed and checked.problems == ()
    assert checked.frames == len(frames) - 1


def test_a_file_shorter_than_the_ledger_says_is_a_problem(tmp_path):
    with open_wal(GOLDEN) as view:
        length, last = view.length, list(view.frames())[-1]
    (tmp_path / "short.wal").write_bytes(GOLDEN.read_bytes()[: last.begin + 10])
    assert "cut short" in check_file(tmp_path / "short.wal", registered=length).problems[0]


def sealed(sequence: int, previous: bytes, content: bytes = b"row") -> bytes:
    """The sealed header of a frame of the one stream of ``FILE``."""
    place = FrameKind.DATA, Codec.NONE, uuid5(NAMESPACE_OID, "table"), "default", FILE, sequence, 1, 7, 7, 1, bytes(32)
    return encode_sealed_header(SealedHeader(*place, previous, sha256(content).digest(), len(content)))


def checked(folder: Path, *frames: tuple[int, bytes, bytes]) -> Checked:
    parts = [encode_file_header(FILE, 1)]
    for frame in frames:
        head, content = sealed(*frame), frame[2]
        parts.append(encode_envelope((FILE.cluster,), len(head) + len(content)) + head + content)
    (folder / "made.wal").write_bytes(b"".join(parts))
    return check_file(folder / "made.wal")


def test_frames_that_come_twice_are_counted_and_other_content_or_a_broken_chain_is_a_problem(tmp_path):
    first = (0, ZERO_HASH, b"row")
    second = (1, stream_hash(sealed(*first)), b"row")
    third = (2, stream_hash(sealed(*second)), b"row")
    assert checked(tmp_path, first, second, third).problems == ()
    again = checked(tmp_path, first, second, first, second, third)
    assert (again.problems, again.frames, again.repeated, again.rows) == ((), 5, 2, 3)
    (problem,) = checked(tmp_path, first, second, (*second[:2], b"other")).problems
    assert "occurs twice, with other content" in problem
    (problem,) = checked(tmp_path, first, (*second[:2], b"other"), third).problems
    assert "hash chain" in problem
    (problem,) = checked(tmp_path, (0, b"x" * 32, b"row")).problems
    assert "has the hash of a frame before it" in problem


def test_an_empty_file_is_a_problem_and_a_missing_one_an_error(tmp_path):
    (tmp_path / "empty.wal").touch()
    assert check_file(tmp_path / "empty.wal").problems
    with pytest.raises(MissingFileError):
        check_file(tmp_path / "none.wal")


def test_what_a_writer_publishes_while_its_file_is_opened_is_no_damage(tmp_path, monkeypatch):
    content, path = GOLDEN.read_bytes(), tmp_path / "open.wal"
    with open_wal(GOLDEN) as view:
        first, *_, last = view.frames()

    class Counter:
        length = last.end

        def close(self):
            pass

    def grows(*_):
        path.write_bytes(content[: last.end])
        return Counter()

    path.write_bytes(content[: first.end])
    monkeypatch.setattr("peer.frames.check.DurableLength.open", grows)
    assert check_file(path).problems == ()
