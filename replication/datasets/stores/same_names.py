"""Names that a store takes for one, as macOS and Windows do with ``README`` and ``readme``."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable

from replication.core.copying.names import STAGING, RelativePath
from replication.datasets.stores.base import Store

_OTHER_CASE = str.__new__(RelativePath, STAGING.upper())  # refused as the name of a file


def name_key(store: Store) -> Callable[[str], str]:
    """What is equal for paths that a store takes for one; ``str`` if it keeps all apart.

    It is known by the folder of staged files, which a store that ignores case has under other names, too. A name of
    which it has another Unicode normal form then counts as the same.
    """
    if not store.traits.moves_folders or store.status(_OTHER_CASE) is None:
        return str
    return lambda path: unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())
