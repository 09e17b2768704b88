"""Making a derived table, and giving one another hook."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from uuid import UUID, uuid4

from peer.derive.hooks import LOST, Hook, load, lost_place, version_of
from peer.derive.names import as_known, check_key, fitted, shown_schema
from replication.core.definition.aging import MAX_AGE
from replication.core.definition.define import cell_table, typed_table
from replication.core.definition.schema import DEFAULT_GROUP, TableSpec
from replication.errors import HookError, RequestError, SchemaError
from replication.ledger.base import Derivation, Ledger


@dataclass(frozen=True, slots=True)
class Derived:
    """A derived table as it was just defined."""

    spec: TableSpec
    source: TableSpec
    derivation: Derivation


def derive_table(
    ledger: Ledger, name: str, source: str, hook: str, options: Mapping[str, str], history_s: int
) -> Derived:
    """Make a table whose rows a hook makes out of another table's, those that are there already too.

    It has a uuid, one group and streams of its own, and goes to peers by rules of its own. Of a table that is derived
    here already the hook is replaced: all rows go through the new one, and what it changes is rewritten; without a key
    those that come from now on. Durable in the ledger when this returns; the ``derive`` role does the rest.

    Args:
        ledger: of the cluster that writes or receives the source, and keeps its table.
        name: of the derived table.
        source: the table it is made of; empty for the one it has.
        hook: a hook's name; empty for the one it has.
        options: for the hook.
        history_s: of a new table.

    Raises:
        RequestError: no such hook, it does not take the options, or the table cannot be derived so.
        UnknownTableError: there is no such source.
        HookError: the hook does not keep the key, or fails.
        SchemaError: it gives columns that a table cannot have.
    """
    there = {spec.name: spec for spec in ledger.tables.all()}
    before = {found.table: found for found in ledger.derivations.all()}
    spec = there.get(name)
    was = before.get(spec.uuid) if spec is not None else None
    if spec is not None and was is None:
        _check_adoptable(spec, ledger.cluster.name)
    origin = _source(ledger, name, source, was)
    if not hook and was is None:
        raise RequestError(f"{name} is not derived yet, so it needs a hook", "Say --hook NAME")
    made = load(hook or (was.hook if was is not None else ""), options or (was.options if was is not None else {}))
    names = dict(was.names) if was is not None else {column.uuid: column.name for column in origin.columns}
    known = as_known(origin, names)
    if spec is None:
        spec = _defined(ledger, name, known, made, history_s)
        names |= {column.uuid: column.name for column in spec.columns}
        ledger.tables.create(spec)
    elif was is None:
        names |= _names_of(spec)
    _check_rows(known, as_known(spec, names), made, names)
    version = version_of(made, ledger.cluster, spec)
    given = options or (was.options if was is not None else {})
    derivation = Derivation(spec.uuid, origin.uuid, made.name, dict(given), names, version)
    if spec.key or was is None:
        ledger.derivations.define(derivation)
    elif was.version == LOST:
        raise lost_place(spec)
    elif (was.hook, was.options, was.version) != (made.name, given, version):
        ledger.derivations.define(derivation, anew=False)
    return Derived(spec, origin, next(d for d in ledger.derivations.all() if d.table == spec.uuid))


def _check_adoptable(spec: TableSpec, cluster: str) -> None:
    """A table that is there may be taken up again by who has lost the ledger that knew how it is derived."""
    if spec.derived != cluster:
        what = f"is derived at {spec.derived}" if spec.derived else "is there and not derived"
        raise RequestError(f"{spec.name} {what}", "Choose another name for the derived table")
    if not spec.key:
        raise RequestError(
            f"{spec.name} has no key, so nothing tells which rows of its source it has",
            f"walship droptable {spec.name}, and derive it under another name",
        )


def _source(ledger: Ledger, name: str, source: str, was: Derivation | None) -> TableSpec:
    if was is not None:
        origin = ledger.tables.by_uuid(was.source)
        assert origin is not None, "tables are never forgotten"
        if source and source != origin.name:
            raise RequestError(f"{name} is derived from {origin.name}", "Derive a table of another name")
        return origin
    if not source:
        raise RequestError(f"{name} is not derived yet", "Say from which table: --from TABLE")
    origin = ledger.tables.get(source)
    if origin.derived == ledger.cluster.name:
        raise RequestError(
            f"{source} is derived here itself", "Derive from the table it comes from, with both hooks in one"
        )
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
        if len(spec.groups) != 1 or spec.groups[0].name != DEFAULT_GROUP:
            raise SchemaError(f"{name} does not come out as a table of one group")
    aging = {key: setting for key, setting in source.settings.items() if key.partition("@")[0] == MAX_AGE}
    return replace(spec, derived=ledger.cluster.name, settings=aging)


def _check_rows(source: TableSpec, derived: TableSpec, hook: Hook, names: Mapping[UUID, str]) -> None:
    """Raise HookError when what the hook gives cannot be the derived table's rows, as far as no rows can tell."""
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
