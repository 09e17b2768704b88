"""Which removals a copy refuses."""

from __future__ import annotations

from replication.core.copying.configuration import CopyConfiguration
from replication.core.copying.names import ROOT
from replication.datasets.stores.base import Store
from replication.error_text import counted
from replication.errors import RequestError


def removals_refusal(count: int, configuration: CopyConfiguration, source: Store | None = None) -> RequestError | None:
    """The error if more files are to be removed than are allowed; or any, where the source is an empty folder.

    A source that is not mounted looks like that.
    """
    most = configuration.delete_max
    if most is None and count and source is not None and is_empty(source):
        return RequestError(
            f"{source.url} is empty, and {counted(count, 'file')} of the target would be removed",
            f"Nothing was removed. Check that the source is mounted; if they are to go, say --max-delete {count}",
        )
    if most is None or count <= most:
        return None
    return RequestError(
        f"{counted(count, 'file')} would be removed, more than --max-delete {most} allows",
        "Nothing was removed. Look at them with --dry-run, then allow more",
    )


def is_empty(source: Store) -> bool:
    """Whether a store has nothing at its address, as where it is not mounted."""
    try:
        return next(iter(source.scan(ROOT)), None) is None
    except FileNotFoundError:
        return True
