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

    def register(key: int, times: int = 1) -> int:
        for _ in range(times):
            coalescer.after_registration(cast(Any, connection), key)
        return connection.looks

    assert register(1, 2 * LOOK_EVERY) == 2
    assert register(1, LOOK_EVERY - 1) == 2
    for key in range(100, 120):
        register(key)
    assert register(1) == 2, "its count was dropped for those of others"
    assert register(1, LOOK_EVERY - 1) == 3
