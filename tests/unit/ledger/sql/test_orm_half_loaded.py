"""A ledger answers while another thread loads SQLAlchemy's ORM, as PyIceberg's catalog does.

While ``sqlalchemy.orm`` is half loaded, SQLAlchemy cannot tell the type of a value that it does not know by its class:
an empty IN, or a member of an enumeration.
"""

from __future__ import annotations

import subprocess
import sys

_CODE = """
import importlib, pkgutil
from sqlalchemy import inspection

def half_loaded(value):
    raise AttributeError("partially initialized module 'sqlalchemy.orm.exc' has no attribute 'UnmappedClassError'")

inspection._registrars[object] = half_loaded
import replication.ledger.sql as sql
for module in pkgutil.walk_packages(sql.__path__, f"{sql.__name__}."):
    importlib.import_module(module.name)

from replication.core.routes.freshness import ClosedNotice
from tests.fakes.ledger import MemoryLedger
from tests.contract.ledger_stores import EAST, FLIGHTS, NORTH, WEST, Peer
from tests.noted import note_closed

ledger = MemoryLedger(WEST)
ledger.tables.create(FLIGHTS)
ledger.rules.define(Peer("north", "zk:2181/north", NORTH), 0)
ledger.rules.enable("north", FLIGHTS.uuid, ["default"], "ops.flights", 0, bootstrap=True)
(wanted,) = ledger.bootstraps.wanted()
ledger.bootstraps.begin_file(wanted, "h0", "/data/wal", "boot")
assert ledger.bootstraps.passed_on() == frozenset()
note_closed(ledger, EAST, ClosedNotice(7, ()))
assert WEST in ledger.time.replicated(FLIGHTS.uuid) and WEST in ledger.time.replicated()
assert ledger.files.lacked() == {}
"""


def test_the_ledger_answers_while_the_orm_is_half_loaded() -> None:
    subprocess.run([sys.executable, "-c", _CODE], check=True, timeout=60)
