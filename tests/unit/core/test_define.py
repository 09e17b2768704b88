"""What a table may be."""

from __future__ import annotations

from uuid import uuid4

import pyarrow as pa
import pytest

from replication.core.define import typed_table
from replication.errors import SchemaError


def test_groups_want_a_key_to_be_put_together_by() -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.int64())])
    with pytest.raises(SchemaError, match="no key to put the groups of a row together by"):
        typed_table("ops.log", schema, [], uuids=iter(uuid4, None), groups={"one": ["a"]})
    whole = typed_table("ops.log", schema, [], uuids=iter(uuid4, None), groups={"one": ["a", "b"]})
    assert [group.name for group in whole.groups] == ["one"]
