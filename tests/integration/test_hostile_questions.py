"""A peer with a grant for some tables asks about others, and what is not a question: its conversation goes on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from replication.core.definition.define import typed_table
from replication.core.definition.schema import TableSpec
from replication.core.grants import Grant
from replication.errors import PeerRefusedError
from replication.link import questions as q
from replication.link._pb import walship_pb2 as pb
from replication.link.grpc_client import connect
from tests.hostile import memory_below
from tests.integration.test_verify_peer import SCHEMA, Pair, simple

Ask = Callable[[bytes], q.Answer]


def made(name: str) -> TableSpec:
    return typed_table(name, SCHEMA, ["k"], uuids=iter(uuid4, None))


GRANTED, SECRET = made("ops.granted"), made("hr.secret")


@pytest.fixture
def ask(tmp_path: Path) -> Iterator[Ask]:
    """Asks in one conversation, which can still read what is granted at the end."""
    with ExitStack() as stack:
        pair = Pair(tmp_path, stack)
        for spec in (GRANTED, SECRET):
            pair.fill(pair.west, spec, simple(10))
        pair.west.ledger.grants.put(Grant(pair.east.cluster, ("ops.*",)), 1)
        link = connect(pair.address, "west", pair.east.cluster, timeout_s=20.0)
        stack.callback(link.close)
        conversation = link.compare(pair.east.cluster, pair.west.cluster)
        stack.callback(conversation.close)

        def asks(raw: bytes) -> q.Answer:
            conversation.ask(raw)
            return q.decode_answer(conversation.answer())

        yield asks
        whole = asks(q.encode_question(q.AskRead(GRANTED, ("default",), q.NOW)))
        assert isinstance(whole, q.Whole) and whole.rows == 10


def read(of: list[str], **change: Any) -> bytes:
    table = json.dumps({**json.loads(GRANTED.to_json()), **change})
    return bytes(pb.Question(read=pb.ReadQuestion(table=table, groups=of, as_of=q.NOW)).SerializeToString())


def test_tables_without_a_grant_are_not_there(ask: Ask) -> None:
    assert ask(q.encode_question(q.AskTables())) == q.TablesAnswer(frozenset({GRANTED.uuid}))
    about = ask(q.encode_question(q.AskTable(SECRET.uuid, SECRET.name)))
    assert isinstance(about, q.About) and about.spec is None
    with pytest.raises(PeerRefusedError, match="there is no table"):
        ask(q.encode_question(q.AskRead(SECRET, ("default",), q.NOW)))
    with pytest.raises(PeerRefusedError, match="no table is open"):
        ask(q.encode_question(q.AskBuckets()))
    granted = ask(read(["default"]))
    assert ask(read(["default"], name=SECRET.name)) == granted, "a name opens no other table"


def test_what_is_no_question_is_refused_and_takes_little(ask: Ask) -> None:
    ask(read(["default"]))
    with memory_below(160):  # both ends of the call; the tables are another process's
        for raw, why in (
            (b"", "unknown kind"),
            (b"\xff" * 100, "cannot be read"),
            (read(["a' or 1=1; drop table x; --"]), "not found"),
            (read([]), "reading failed"),
            (read(["default"], history_s=0.5), "history_s"),
            (read(["default"], key=["k", "k"]), "twice"),
            (read(["default"], key=[], groups=[["default", ["k", "v", "w"], 0]]), "another key"),
            (read(["default"], key=["v"], groups=[["default", ["k", "w"], 0]]), "another key"),
            (bytes(pb.Question(keys=b"abc").SerializeToString()), "cannot be read"),
            (bytes(pb.Question(keys=b"\0\1" * (8 << 20)).SerializeToString()), "more than 8192"),
        ):
            with pytest.raises(PeerRefusedError, match=why):
                ask(raw)
