"""What a person can do with quarantined frames: find one, try it again, or discard it.

A retried frame is copied into a landing file of its own. Replay applies it from there, once, or quarantines it again. A
discarded frame no longer holds back its table's replicated time; its copy stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from peer.repair.readable import is_whole
from peer.repair.saved_copy import copied
from replication.config import Config
from replication.core.frame import FrameView, check_payload, read_frame
from replication.errors import CorruptFrameError, MissingFileError, RequestError
from replication.files.base import Files
from replication.ledger.base import Claim, FileRow, Ledger, Quarantined
from replication.wall_clock import now_us


def name_of(frame: Quarantined) -> str:
    """How a person names it: ``slot/number:offset``."""
    return f"{frame.file.local}:{frame.begin}"


def find(frames: Sequence[Quarantined], name: str) -> Quarantined:
    """The frame of that name; RequestError when there is none, or when it is a lost write."""
    for frame in frames:
        if name == name_of(frame):
            if frame.succession:
                raise RequestError(
                    f"{name} is a lost write: it was left out by {frame.succession}",
                    "Decide with walship lostwrites merge, or walship lostwrites discard",
                )
            return frame
    known = ", ".join(name_of(frame) for frame in frames[:5]) or "none"
    raise RequestError(f"no frame {name} is quarantined", f"Quarantined: {known}; see walship quarantine list")


def retry(config: Config, ledger: Ledger, files: Files, *frames: Quarantined) -> FileRow:
    """Try frames of one file again, for instance after an upgrade. Returns the landing file that has them now.

    Raises:
        MissingFileError: a copy is not on this host.
        CorruptFrameError: a copy's bytes are damaged, so that it can never be applied.
        RequestError: one belongs to another history of its stream, or its sequence is in another file by now.
    """
    read = [saved_frame(frame) for frame in frames]
    row = ledger.files.get(frames[0].file)
    with copied(config, ledger, files, row.source if row is not None else None, read) as made:
        places = [(frame.file, frame.begin) for frame in frames]
        ledger.replay.requeue(dict(zip(places, made.claims, strict=True)), made.row.file)
    return made.row


def saved_frame(frame: Quarantined) -> tuple[FrameView, bytes]:
    """A frame's copy, which must be whole. Raises MissingFileError, CorruptFrameError: as ``retry``."""
    verb = "lostwrites discard --leave-applied" if frame.succession else f"quarantine discard {name_of(frame)}"
    remedy = f"Discard it: walship {verb} --yes"
    try:
        content = Path(frame.copy).read_bytes()
    except OSError as error:
        raise MissingFileError(
            f"the copy {frame.copy} of the frame cannot be read: {error.strerror}",
            f"Try on the host that has it. If it is lost: {remedy}",
        ) from None
    try:
        view = read_frame(content, 0)
        if view is not None:
            check_payload(view, memoryview(content)[view.payload_begin : view.end])
    except CorruptFrameError as error:
        raise CorruptFrameError(f"{frame.copy}: {error.what}", remedy) from None
    if view is None or view.end != len(content):
        raise CorruptFrameError(f"{frame.copy} is not a whole frame", remedy)
    return view, content


def discard(ledger: Ledger, frame: Quarantined, *, is_alone: bool = False) -> bool:
    """Discard a frame: its rows are missing here, and nothing waits for them any more.

    ``is_alone``: no other host may have the copy. Returns whether it is damaged or lost. Then only a bootstrap can
    bring its rows.
    """
    claim, is_lost = _damaged(frame), is_alone and not Path(frame.copy).exists()
    ledger.replay.discard(frame.file, frame.begin, now_us(), claim, is_lost=is_lost)
    return is_lost or claim is not None


def _damaged(frame: Quarantined) -> Claim | None:
    """The claim of a frame whose payload does not fit its header; None of any other."""
    try:
        content = Path(frame.copy).read_bytes()
        view = read_frame(content, 0, frame.begin)
    except (OSError, CorruptFrameError):
        return None
    if view is None or is_whole(view, memoryview(content)):
        return None
    return Claim.of(view, view.begin, view.end)
