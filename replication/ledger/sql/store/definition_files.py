"""Definitions as files beside a SQLite ledger, so that frames can be decoded when the ledger is lost.

Data frames do not carry their schema, and the catalog has a table's definition only after its first replay. A file here
is durable before the ledger has the definition, and so before any frame of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from uuid import UUID

from replication.core.definition.schema import SchemaVersion, TableSpec
from replication.errors import FormatError
from replication.files.local import LocalFiles, path_errors, write_whole

_VERSION, _TABLE = ".schema", ".table"


class DefinitionFiles:
    """The folder ``schemas`` beside a ledger: a file for each schema version, and one for each table.

    A version's file is named by table and hash. It has a line with table and group, then the body. A table's file has
    its definition as JSON.
    """

    def __init__(self, ledger: Path) -> None:
        self._folder = ledger.parent / "schemas"
        self._kept: set[str] = set()

    def keep_version(self, version: SchemaVersion) -> None:
        """Write a version unless its file exists; durable on return. Raises StorageError when writing fails."""
        name = f"{version.table}.{version.hash.hex()}"
        if name not in self._kept:
            path = self._folder / f"{name}{_VERSION}"
            if not path.exists():
                self._write(path, f"{version.table} {version.group}\n".encode() + version.body)
            self._kept.add(name)

    def keep_table(self, spec: TableSpec) -> None:
        """Write or replace a table's definition; durable on return. Raises StorageError when writing fails."""
        self._write(self._table(spec.uuid), spec.to_json().encode())

    def forget_table(self, table: UUID) -> None:
        """Remove the definition of a dropped table."""
        LocalFiles().remove(str(self._table(table)))

    def forget_tables(self, uuids: Iterable[str]) -> None:
        """Remove the definitions of those of ``uuids`` that have one."""
        kept = {path.stem for path in self._folder.glob(f"*{_TABLE}")}
        for uuid in kept.intersection(uuids):
            self.forget_table(UUID(uuid))

    def versions(self) -> list[SchemaVersion]:
        """Every intact version."""
        found = []
        for path in sorted(self._folder.glob(f"*{_VERSION}")):
            named, _, body = path.read_bytes().partition(b"\n")
            try:
                table, _, group = named.decode().partition(" ")
                found.append(SchemaVersion.load(UUID(table), group, bytes.fromhex(path.stem.rpartition(".")[2]), body))
            except (FormatError, ValueError):  # damaged: leave it out
                continue
        return found

    def tables(self) -> dict[UUID, TableSpec]:
        """Every intact definition."""
        found = {}
        for path in sorted(self._folder.glob(f"*{_TABLE}")):
            try:
                spec = TableSpec.from_json(path.read_text(encoding="utf-8"))
            except (FormatError, ValueError, KeyError):
                continue
            found[spec.uuid] = spec
        return found

    def _table(self, table: UUID) -> Path:
        return self._folder / f"{table}{_TABLE}"

    def _write(self, path: Path, content: bytes) -> None:
        with path_errors(str(path), "write"):
            self._folder.mkdir(parents=True, exist_ok=True)
            write_whole(path, content)
