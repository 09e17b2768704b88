"""What `walship write` refuses before it touches a file."""

from __future__ import annotations

from typing import cast

import pytest

from peer.cluster import Cluster
from replication.errors import RequestError
from shell.render import Printer
from shell.writing import write_file
from tests.tables_made import cell, keyed

NOBODY, SILENT = cast(Cluster, None), cast(Printer, None)


def test_a_batch_id_is_not_silently_left_out_for_cells() -> None:
    with pytest.raises(RequestError, match="cell table"):
        write_file(NOBODY, cell("t.c"), "cells.csv", "", SILENT, delete=False, batch_id="load-7")


def test_deletes_take_no_batch_id() -> None:
    with pytest.raises(RequestError, match="--delete"):
        write_file(NOBODY, keyed("t.k"), "rows.csv", "", SILENT, delete=True, batch_id="load-7")
