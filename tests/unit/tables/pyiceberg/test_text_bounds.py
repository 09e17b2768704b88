"""Any text can be written, whatever letter its statistics are cut at."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.io.pyarrow import _pyarrow_to_schema_without_ids, schema_to_pyarrow
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import assign_fresh_schema_ids
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

from replication.tables.pyiceberg.write import write_data_files


@pytest.mark.parametrize("letter", ["\ud7ff", "\ue000", "\U0010ffff", "\x7f", "\uffff"])
def test_a_text_cut_at_any_letter_is_written_with_a_bound_above_it(tmp_path: Path, letter: str) -> None:
    given = pa.schema([("v", pa.string())])
    fresh = assign_fresh_schema_ids(_pyarrow_to_schema_without_ids(given))
    metadata = new_table_metadata(fresh, UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, str(tmp_path))
    schema = schema_to_pyarrow(metadata.schema(), include_field_ids=False)
    value = "x" * 15 + letter + "yyy"
    rows = pa.record_batch([pa.array([value], schema.field(0).type)], schema=schema)
    (file,) = write_data_files(metadata, {}, [rows])
    assert pq.read_table(file.file_path).column("v").to_pylist() == [value]
    assert file.upper_bounds[1] >= value.encode()
