"""A shared folder of which a call is still answered while others change it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from peer.folders.shared import SharedFolders
from replication.core.grants import Caller
from replication.core.ids import ClusterId
from replication.link.file_calls import PIECE_BYTES, FileAsk, FileCall, SharedEntry
from replication.settings import SharedFolder
from tests.copying import write_tree


def test_a_link_that_is_moved_in_place_of_a_folder_while_a_file_in_it_is_read_is_not_followed(tmp_path: Path) -> None:
    write_tree(tmp_path, {"inbox/d/file": bytes(3 * PIECE_BYTES), "outside/file": b"s" * 3 * PIECE_BYTES})
    (tmp_path / "inbox/link").symlink_to(tmp_path / "outside")
    inbox = SharedFolder.model_validate({"path": str(tmp_path / "inbox"), "clusters": ["east"]})
    folders, caller = SharedFolders("west", {"inbox": inbox}, 0), Caller(ClusterId("east", uuid4()))

    def ask(call: FileCall, *paths: str, **given: Any) -> Iterator[SharedEntry | bytes]:
        return folders.answer(FileAsk("inbox", call, paths, **given), caller)

    pieces = ask(FileCall.REREAD, "d/file", end=3 * PIECE_BYTES)
    assert next(pieces) == bytes(PIECE_BYTES)
    list(ask(FileCall.MOVE, "d", "old"))
    list(ask(FileCall.MOVE, "link", "d"))
    with pytest.raises(PermissionError, match="a link is not followed"):
        list(pieces)
