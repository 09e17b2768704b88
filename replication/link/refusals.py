"""Refusals as messages of ``proto/walship.proto``, and back."""

from __future__ import annotations

from uuid import UUID

from replication.core.ids import FileId
from replication.link._pb import walship_pb2 as pb
from replication.link.base import Reason, Refusal

_TEXT_MAX = 4000
_LINE_BYTES_MAX = 1500  # metadata of a call has 16 KiB; as such, bytes that are not ASCII take three times as much


def encode_refusal(refusal: Refusal) -> pb.Refusal:
    """As a message of its own."""
    return pb.Refusal(
        reason=pb.Reason.Value(refusal.reason.value),
        what=refusal.what,
        remedy=refusal.remedy,
        file=str(refusal.file) if refusal.file else "",
        begin=refusal.begin,
        end=refusal.end,
        expected=refusal.expected + 1,
        table=refusal.table.bytes if refusal.table else b"",
    )


def decode_refusal(message: pb.Refusal) -> Refusal:
    """Read one; a reason from a newer version counts as NOT_READY.

    Its texts are shown on terminals: control characters become spaces.
    """
    name = pb.Reason.Name(message.reason) if message.reason in pb.Reason.values() else ""
    return Refusal(
        Reason(name) if name in Reason.__members__ else Reason.NOT_READY,
        shown(message.what) or "no reason is given",
        shown(message.remedy),
        FileId.parse(message.file) if message.file else None,
        message.begin,
        message.end,
        message.expected - 1,
        UUID(bytes=message.table) if len(message.table) == 16 else None,
    )


def shown(text: str) -> str:
    """A text of another cluster as it may be stored and shown: not long, control characters become spaces."""
    return "".join(sign if sign.isprintable() else " " for sign in text[:_TEXT_MAX])


def ending(*lines: str) -> str:
    """Texts that end a call, a line each, cut so that they reach the caller."""
    return "\n".join(line.encode(errors="replace")[:_LINE_BYTES_MAX].decode(errors="ignore") for line in lines)
