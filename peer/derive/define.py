"""Making a derived table, and changing its hook."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from uuid import UUID, uuid4

from peer.derive.hooks import LOST, Hook, dropped_source, load, lost_position, version_of
from peer.derive.names import as_known, check_key, fitted, shown_schema
from replication.core.definition.aging import MAX_AGE
from replication.core.definition.define import cell_table, typed_table
from replication.core.definition.schema import TableSpec
from replication.errors import HookError, RequestError
from replication.ledger.base import Derivation, Ledger


def derive_table(
    ledger: Ledger, name: str, source: str, hook: str, options: Mapping[str, str], history_s: int
) -> TableSpec:
    """Make a table whose rows a hook makes from another table's rows, or change the hook of a derived table.

    With a key, all rows of the source go through the hook, also when the hook changes. Without a key, a changed hook
    gets only the rows that come from now on. The same hook and options again change nothing. Durable in the ledger on
    return; the ``derive`` role writes the rows. Of a derived table, what is empty stays as it is.

    Raises:
        RequestError: no such hook, it does not take the options, or this table cannot be derived.
        UnknownTableError: there is no such source.
        HookError: the hook changes the key, or fails.
        SchemaError: the hook gives columns that a table cannot have.
    """
    spec = next((found for found in ledger.tables.all() if found.name == name), None)
    was = None if spec is None else derivation_of(ledger, spec.uuid)
    if spec is not None and was is None:
        _check_adoptable(spec, ledger.cluster.name)
    origin = _source(ledger, name, source, was)
    if was is not None:
        hook, options, names = hook or was.hook, options or was.options, dict(was.names)
    else:
        names = _names_of(origin)
    if not hook:
        raise RequestError(f"{name} is not derived yet, so it needs a hook", "Add --hook NAME")
    made = load(hook, options)
    known = as_known(origin, names)
    if spec is None:
        spec = _defined(ledger, name, known, made, history_s)
        ledger.tables.create(spec)
    if was is None:
        names |= _names_of(spec)
    _check_rows(known, as_known(spec, names), made, names)
    version = version_of(made, ledger.cluster, spec)
    derivation = Derivation(spec.uuid, origin.uuid, made.name, dict(options), names, version)
    if was is not None and was.version == LOST:  # only of a table without a key
        raise lost_position(spec)
    if was is None or (was.hook, was.options, was.version) != (made.name, options, version):
        ledger.derivations.define(derivation, anew=was is None or bool(spec.key))
    return spec


def derivation_of(ledger: Ledger, table: UUID) -> Derivation | None:
    """The derivation of a table; None when it is not derived, or was dropped."""
    return next((found for found in ledger.derivations.all() if found.table == table), None)


def _check_adoptable(spec: TableSpec, cluster: str) -> None:
    """Refuse a table that is not derived here. One that is may have lost its derivation with the ledger."""
    if spec.derived != cluster:
        what = f"is derived at {spec.derived}" if spec.derived else "exists and is not derived"
        raise RequestError(f"{spec.name} {what}", "Choose another name for the derived table")
    if not spec.key:
        raise RequestError(
            f"{spec.name} has no key, so it is not known which rows of its source it has",
            f"walship droptable {spec.name}, and derive it under another name",
        )


def _source(ledger: Ledger, name: str, source: str, was: Derivation | None) -> TableSpec:
    if was is not None:
        origin = ledger.tables.by_uuid(was.source)
        assert origin is not None, "tables are never forgotten"
        if source and source != origin.name:
            raise RequestError(f"{name} is derived from {origin.name}", "Derive a table of another name")
        if origin not in ledger.tables.all():
            raise dropped_source(ledger.tables.get(name), origin.name)
        return origin
    if not source:
        raise RequestError(f"{name} is not derived yet", "Add the table to derive it from: --from TABLE")
    origin = ledger.tables.get(source)
    if origin.derived == ledger.cluster.name:
        raise RequestError(f"{source} is derived here itself", "Derive from its own source, with both hooks in one")
    return origin


def _defined(ledger: Ledger, name: str, source: TableSpec, hook: Hook, history_s: int) -> TableSpec:
    empty = shown_schema(source, None, {}).empty_table()
    made = hook(empty).schema
    check_key(made, source, hook.name)
    uuids = iter(uuid4, None)
    if source.kind == "cell":
        spec = cell_table(name, uuids=uuids, history_s=history_s)
    else:
        spec = typed_table(name, made, source.key, uuids=uuids, history_s=history_s)
    aging = {key: setting for key, setting in source.settings.items() if key.partition("@")[0] == MAX_AGE}
    return replace(spec, derived=ledger.cluster.name, settings=aging)


def _check_rows(source: TableSpec, derived: TableSpec, hook: Hook, names: Mapping[UUID, str]) -> None:
    """Raise HookError when the hook's columns, seen without rows, do not fit the derived table."""
    made = hook(shown_schema(source, derived, names).empty_table())
    check_key(made.schema, source, hook.name)
    if derived.key != source.key:
        raise HookError(f"{derived.name} has another key than {source.name}", "Derive a table of another name")
    try:
        fitted(made, derived, hook.name)
    except HookError as error:
        hint = f"{error.hint}; or derive a table of another name"
        raise HookError(error.what, hint) from None


def _names_of(spec: TableSpec) -> dict[UUID, str]:
    return {column.uuid: column.name for column in spec.columns}
