"""Owners of other hosts' files."""

from __future__ import annotations

from pathlib import Path

import pytest

from replication.core.copying.attributes import FileAttributes
from replication.core.copying.configuration import CopyConfiguration
from replication.core.copying.copyable import CopyableFile
from replication.core.copying.names import RelativePath
from replication.datasets.stores.base import is_temporary
from replication.datasets.stores.local import LocalStore
from replication.errors import CopyError


@pytest.mark.parametrize("kind", ["user", "group"])
def test_an_owner_that_this_host_does_not_have_is_named_and_not_tried_again(tmp_path: Path, kind: str) -> None:
    path = RelativePath("a")
    there = FileAttributes(path, 1, 0, **{kind: "ann-of-hdfs"})
    file = CopyableFile.build("hdfs://far", there, CopyConfiguration(preserve=frozenset({"owner", "group"})))
    with pytest.raises(CopyError, match=f"this host has no {kind} 'ann-of-hdfs'") as refused:
        LocalStore(str(tmp_path)).write_small(path, file, b"x")
    assert not is_temporary(refused.value)
