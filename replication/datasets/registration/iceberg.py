"""Registers published Parquet files in an Iceberg table, where they lie; nothing is copied or read but their footers.

The catalog is one of PyIceberg's configuration: ``~/.pyiceberg.yaml``, or ``PYICEBERG_CATALOG__LAKE__URI`` and so on
in the environment. It may be a Hive metastore, a REST catalog, Glue, SQL. A table that is not there is made with the
schema of the first file.
"""

from __future__ import annotations

from typing import Any

from replication.datasets.registration.base import RegisteredFile
from replication.errors import RequestError

_KEY = "walship.published"
_ATTEMPTS = 5


class IcebergRegistrar:
    """One table.

    Args:
        name: ``CATALOG.NAMESPACE.TABLE``; a namespace may have several parts.

    Raises:
        RequestError: the name has fewer parts, or PyIceberg knows no such catalog.
    """

    def __init__(self, name: str) -> None:
        from pyiceberg.catalog import load_catalog

        from replication.tables.pyiceberg.patches import patch_pyiceberg

        catalog, *table = name.split(".")
        if len(table) < 2 or not all((catalog, *table)):
            raise RequestError(f"{name!r} is not CATALOG.NAMESPACE.TABLE", "Name all three")
        patch_pyiceberg()
        self._table = tuple(table)
        try:
            self._catalog = load_catalog(catalog)
        except Exception as error:  # each catalog has its own errors
            raise RequestError(
                f"PyIceberg cannot open the catalog {catalog}: {error}"[:500], "Correct ~/.pyiceberg.yaml"
            ) from None

    def refusal(self, target: str, file: RegisteredFile) -> str:
        """PyIceberg would read, and name in the table, the file whose name ends before a ``#`` or ``?``."""
        cut = _parquet((file,)) and set("#?") & set(f"{target}/{file.path}")
        return f"PyIceberg takes an address to end before {min(cut)}" if cut else ""

    def has(self, key: str, files: tuple[RegisteredFile, ...]) -> bool:
        """Whether a snapshot of the table has added the files of a key, or none is Parquet."""
        from pyiceberg.exceptions import NoSuchTableError

        if not _parquet(files):
            return True
        try:
            return _has(self._catalog.load_table(self._table), key)
        except NoSuchTableError:
            return False

    def register(self, target: str, key: str, files: tuple[RegisteredFile, ...]) -> None:
        """Add the Parquet files to the table by one commit.

        Raises:
            CommitFailedException: others commit all the time.
            ValueError: the table has one of them, or their columns do not fit it.
        """
        from pyiceberg.exceptions import CommitFailedException

        paths = [f"{target}/{path}" for path in _parquet(files)]
        for attempt in range(1, _ATTEMPTS + 1):
            table = self._loaded(paths[0])
            if _has(table, key):
                return
            try:
                table.add_files(paths, snapshot_properties={_KEY: key})
                return
            except CommitFailedException:
                if attempt == _ATTEMPTS:
                    raise

    def _loaded(self, first: str) -> Any:
        import pyarrow.parquet as pq
        from pyiceberg.exceptions import NoSuchTableError, TableAlreadyExistsError
        from pyiceberg.io import load_file_io

        try:
            return self._catalog.load_table(self._table)
        except NoSuchTableError:
            pass
        with load_file_io(dict(self._catalog.properties), first).new_input(first).open() as file:
            schema = pq.read_schema(file)
        self._catalog.create_namespace_if_not_exists(self._table[:-1])
        try:
            return self._catalog.create_table(self._table, schema=schema)
        except TableAlreadyExistsError:
            return self._catalog.load_table(self._table)


def _parquet(files: tuple[RegisteredFile, ...]) -> list[str]:
    return [file.path for file in files if file.path.endswith(".parquet")]


def _has(table: Any, key: str) -> bool:
    """Whether the table has what was added with a key; not if it was rolled back since."""
    from pyiceberg.table.snapshots import ancestors_of

    added = {
        each.snapshot_id for each in table.snapshots() if each.summary is not None and each.summary.get(_KEY) == key
    }
    now = ancestors_of(table.current_snapshot(), table.metadata) if added else ()
    return any(each.snapshot_id in added for each in now)
