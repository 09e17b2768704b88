"""What a short command does not load: each of these costs everybody a tenth of a second or more."""

import subprocess
import sys

import pytest
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateIndex

from replication.ledger.sql.schema import tables as sql_schema
from replication.ledger.sql.schema.metadata import give_postgresql_partial_indexes

FOR_A_READ = """
import sys, shell.main, shell.rows.reading, peer.client.connect, peer.tables.read
shell.main.make_app(["read", "t"])
print(*sys.modules)
"""
UNUSED = (
    "sqlalchemy.dialects.postgresql",
    "grpc",
    "pandas",
    "pyarrow.dataset",
    "pyspark",
    "peer.replay.commit",
    "requests",
    "replication.writer.writer",
)


@pytest.mark.heavy
def test_a_read_loads_nothing_that_it_does_not_use():
    done = subprocess.run([sys.executable, "-c", FOR_A_READ], capture_output=True, text=True, check=True, timeout=120)
    assert not {name for name in done.stdout.split() if name in UNUSED}


def test_postgresql_gets_its_partial_indexes_all_the_same():
    give_postgresql_partial_indexes()
    made = [
        str(CreateIndex(index).compile(dialect=postgresql.dialect()))
        for table in sql_schema.files.metadata.tables.values()
        for index in table.indexes
    ]
    partial = {sql.split()[-1] for sql in made if " WHERE " in sql}
    assert len([sql for sql in made if " WHERE " in sql]) == 3 and partial == {"dropped", "length"}
