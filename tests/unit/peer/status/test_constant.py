"""What status asks of the ledger does not grow with the number of tables."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import sqlalchemy as sa

from peer.status.collect import collect
from peer.status.members import Members
from replication import config
from replication.core.definition.define import cell_table
from replication.core.ids import ClusterId
from replication.ledger.sql.ledger import initialise, open_ledger


def test_status_takes_as_many_statements_for_many_tables_as_for_few(tmp_path: Path) -> None:
    here = config.load(None, {"cluster": {"name": "east", "data_dir": str(tmp_path)}}, {})
    initialise(here.ledger_url, ClusterId("east", uuid4()))
    ledger, statements = open_ledger(here.ledger_url), list[str]()

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        statements.append(statement)

    def asked(tables: int) -> int:
        for number in range(len(ledger.tables.all()), tables):
            ledger.tables.create(cell_table(f"ops.t{number}", uuids=iter(uuid4, None)))
        statements.clear()
        assert len(collect(here, ledger, Members()).tables) == tables
        return len(statements)

    sa.event.listen(sa.engine.Engine, "before_cursor_execute", note)
    try:
        asked(1)
        assert asked(10) == asked(100)
    finally:
        sa.event.remove(sa.engine.Engine, "before_cursor_execute", note)
        ledger.close()
