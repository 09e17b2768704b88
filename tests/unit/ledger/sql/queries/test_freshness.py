"""The caches of decoded notices and routes are bounded by what they list."""

from __future__ import annotations

from uuid import UUID

import pytest

from peer.receive.routes import _LISTED_MAX
from replication.core.ids import ClusterId, FileId, StreamId
from replication.core.routes.carried import InboundRoute
from replication.core.routes.freshness import NOTED_STREAMS_MAX, ClosedNotice
from replication.errors import FormatError
from replication.ledger.sql.queries.freshness import (
    _ROUTES_CHARS,
    NOTICES_MAX,
    decode_notice,
    keep_decoded,
    route_columns,
)

STREAM = StreamId(FileId(ClusterId("east", UUID(int=1)), "h0", 0), UUID(int=2), "default")


def listing(streams: int) -> ClosedNotice:
    return ClosedNotice(1, ((STREAM, 0),) * streams)


def is_kept(name: bytes) -> bool:
    """Whether what was kept under a name, which is no notice that could be decoded, is still there."""
    try:
        decode_notice(name)
    except FormatError:
        return False
    return True


def test_a_notice_is_decoded_once() -> None:
    payload = listing(3).encode()
    assert decode_notice(payload) == listing(3)
    assert decode_notice(payload) is decode_notice(payload)
    with pytest.raises(FormatError):
        decode_notice(b"\x01 no notice")


def test_the_last_used_notices_are_kept_up_to_a_number_of_streams() -> None:
    third = listing(NOTED_STREAMS_MAX // 3)
    keep_decoded(b"\x01a", third)
    keep_decoded(b"\x01b", third)
    assert decode_notice(b"\x01a") is third
    keep_decoded(b"\x01c", third)
    assert is_kept(b"\x01a") and not is_kept(b"\x01b") and is_kept(b"\x01c")
    keep_decoded(b"\x01d", listing(NOTED_STREAMS_MAX + 1))
    assert is_kept(b"\x01d"), "the newest is kept whatever it lists"
    assert not is_kept(b"\x01a") and not is_kept(b"\x01c")
    for number in range(3 * NOTICES_MAX):
        keep_decoded(b"\x01%d" % number, listing(1))
    assert not is_kept(b"\x01d") and not is_kept(b"\x010") and is_kept(b"\x01%d" % number)


def test_the_routes_of_a_sender_are_kept_even_if_they_list_as_many_wals_as_they_may() -> None:
    """Else each read of a replicated time, and each wait, would read them all again."""
    wals = {FileId(STREAM.wal.cluster, "host-0001", number): 1 << 20 for number in range(1000)}
    listed = route_columns(InboundRoute(STREAM.wal.cluster, STREAM.table, "default", 1, wals))["required_from"]
    assert len(listed) * _LISTED_MAX / len(wals) < _ROUTES_CHARS
