"""What ``walship import`` says of several files."""

from __future__ import annotations

import io
from pathlib import Path
from typing import cast
from uuid import uuid4

import pytest
from rich.console import Console

from peer.client.cluster import Cluster
from replication.core.ids import ClusterId
from replication.core.position import Position
from replication.errors import FormatError
from replication.writer.importing.importer import Imported, Report
from shell.cli.render import Printer
from shell.rows.importing import import_files


class Takes:
    """A cluster that imports files, but for those named bad."""

    id = ClusterId("east", uuid4())

    def import_files(self, table: str, file: Path, *, format: str, again: bool, report: Report) -> Position:
        if file.name == "bad":
            raise FormatError("it is damaged")
        report(Imported(str(file), 1, 1))
        return Position(self.id)


def test_files_after_a_bad_one_are_said_not_to_be_tried() -> None:
    err = io.StringIO()
    printer = Printer(False, Console(file=io.StringIO()), Console(file=err, width=200))
    files = [Path("good"), Path("bad"), Path("more")]
    with pytest.raises(FormatError):
        import_files(cast(Cluster, Takes()), "t.t", files, "", printer, again=False)
    assert "good: 1 row\n" in err.getvalue()
    assert "1 of 3 files are imported; those after bad were not tried" in err.getvalue()
