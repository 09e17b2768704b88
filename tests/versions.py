"""Versions of keys as replay writes them, and the simplest model of what a table of them shows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from peer.tables.commit_metadata import CommitMetadata
from peer.tables.read import read
from replication.core.definition.schema import TableSpec
from replication.tables.base import Catalog, Tables
from replication.tables.layout import CHANGES, merge_groups
from tests.tables_made import as_decode


@dataclass(frozen=True)
class Version:
    key: str
    group: str
    op: int
    ts: int | None
    commit: int
    origin: str
    seq: int
    row: int
    value: int | None

    @property
    def order(self) -> tuple[Any, ...]:
        ts = self.commit if self.ts is None else self.ts
        return ts, self.op == 2, self.commit, self.origin, "h0/1", self.seq, self.row


def model(versions: Iterable[Version], spec: TableSpec) -> list[dict[str, Any]]:
    newest: dict[tuple[str, str], Version] = {}
    for version in versions:
        at = (version.key, merge_groups(spec)[0] if spec.kind == "cell" else version.group)
        if at not in newest or newest[at].order < version.order:
            newest[at] = version
    rows: dict[str, dict[str, Any]] = {}
    for version in newest.values():
        if version.op == 0:
            rows.setdefault(version.key, empty_row(spec, version.key)).update(values(spec, version))
    return sorted(rows.values(), key=repr)


def empty_row(spec: TableSpec, key: str) -> dict[str, Any]:
    row: dict[str, Any] = {column.name: None for column in spec.columns}
    if spec.kind == "cell":
        return row | {"row": key.encode(), "family": "m", "qualifier": "q", "visibility": ""}
    return row | {"k": key}


def values(spec: TableSpec, version: Version) -> dict[str, Any]:
    value = version.value
    if spec.kind == "cell":
        return {"value": None if value is None else str(value).encode()}
    name = spec.group(version.group).members[0]
    return {name: str(value) if name == "b" and value is not None else value}


def as_rows(spec: TableSpec, versions: Sequence[Version]) -> pa.Table:
    columns = {c.name: c.type for c in spec.columns}
    rows = [
        empty_row(spec, v.key)
        | (values(spec, v) if v.op == 0 else {})
        | {"_group": v.group, "_op": v.op, "_ts": v.ts, "_commit": v.commit, "_origin": v.origin, "_wal": "h0/1"}
        | {"_seq": v.seq, "_row": v.row}
        for v in versions
    ]
    logged = [("_group", pa.string()), ("_op", pa.int32()), ("_ts", pa.int64()), ("_commit", pa.int64())]
    logged += [("_origin", pa.string()), ("_wal", pa.string()), ("_seq", pa.int64()), ("_row", pa.int32())]
    return pa.Table.from_pylist(rows, pa.schema([*columns.items(), *logged]))


def shown(tables: Catalog, spec: TableSpec, as_of: int | None = None) -> list[dict[str, Any]]:
    return sorted(read(tables, spec, as_of=as_of).read_all().to_pylist(), key=repr)


def append(tables: Tables, spec: TableSpec, versions: Sequence[Version], number: int) -> None:
    """What replay commit ``number`` does with these versions."""
    rows = as_decode(as_rows(spec, versions), {"_replay": number})
    name = spec.name + CHANGES
    tables.append(name, rows, tables.history(name).current, CommitMetadata(1, number, {}).to_summary())
