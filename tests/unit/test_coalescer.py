"""Which files' rows are looked after, however many files there have been."""

from __future__ import annotations

from typing import Any, cast

import pytest

from replication.ledger.sql.queries import claims as sql_claims
from replication.ledger.sql.queries.claims import LOOK_EVERY, Coalescer


class Connection:
    """Counts how often rows are looked at; there are few."""

    looks = 0

    def scalar(self, wanted: object) -> int:
        self.looks += 1
        return 1


def test_a_file_is_looked_at_every_so_often_and_only_those_of_now_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql_claims, "REMEMBERED", 10)
    connection, coalescer = Connection(), Coalescer()
    for key in range(100):
        coalescer.after_registration(cast(Any, connection), key)
    assert len(coalescer._since) <= 10
    for _ in range(2 * LOOK_EVERY):
        coalescer.after_registration(cast(Any, connection), 1000)
    assert connection.looks == 2 and 1000 not in coalescer._since
