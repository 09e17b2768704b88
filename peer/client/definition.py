"""Checks what a caller gives to define or alter a table, and makes the definition or the change of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from uuid import uuid4

from replication.core.arrow import pa
from replication.core.definition import alter
from replication.core.definition.define import cell_table, is_system_table, typed_table
from replication.core.definition.schema import TableSpec
from replication.core.definition.text import parse_schema
from replication.core.roles import Role
from replication.errors import RequestError, SchemaError, TableExistsError
from replication.ledger.base import Ledger
from replication.roles.active import standby_refusal


def refuse_standby(ledger: Ledger) -> None:
    """Raise ReadOnlyClusterError on a STANDBY: tables are defined where they are written."""
    if ledger.terms.role().role is not Role.ACTIVE:
        raise standby_refusal(ledger, "its tables were not changed")


def refuse_system_name(name: str) -> None:
    """Raise SchemaError when walship makes tables of that name for itself."""
    if is_system_table(name):
        raise SchemaError(f"{name!r} is reserved for walship's own tables", "Choose another name")


def refuse_taken_name(name: str, specs: Iterable[TableSpec]) -> None:
    """Raise TableExistsError when one of ``specs`` has the name, in any letter case."""
    for spec in specs:
        if spec.name.lower() == name.lower():
            note = "" if spec.name == name else " (letter case does not count)"
            hint = f"See walship describetable {spec.name}; walship altertable changes it"
            raise TableExistsError(f"there is a table {spec.name} already{note}", hint)


def definition(
    name: str,
    schema: object,
    key: Sequence[str],
    groups: Mapping[str, Sequence[str]] | None,
    partition: Sequence[str],
    sort: Sequence[str],
    kind: str,
    history_s: int,
) -> TableSpec:
    """A new table from the arguments of ``Cluster.create_table``; SchemaError when they do not fit."""
    key, partition, sort = ([each] if isinstance(each, str) else each for each in (key, partition, sort))
    groups = {name: [each] if isinstance(each, str) else each for name, each in (groups or {}).items()}
    if kind == "cell":
        if schema is not None or key or partition or sort:
            raise SchemaError("the columns and key of a cell table are fixed", "Give only name, groups and history_s")
        return cell_table(name, uuids=iter(uuid4, None), groups=groups, history_s=history_s)
    if kind != "typed":
        raise SchemaError(f"there is no kind of table {kind!r}", "It is typed or cell")
    columns = given_schema(schema)
    if partition:
        from replication.tables.partition import check_partition  # deferred: PyIceberg takes a while to load

        check_partition(columns, partition)
    return typed_table(
        name,
        columns,
        key,
        uuids=iter(uuid4, None),
        groups=groups,
        partition=partition,
        sort=sort,
        history_s=history_s,
    )


def alteration(
    add: str | pa.Field | None,
    group: str,
    rename: tuple[str, str] | None,
    widen: str | pa.Field | None,
    drop: str | None,
    add_group: tuple[str, str | pa.Schema] | None,
    now: int,
) -> Callable[[TableSpec], TableSpec]:
    """A function that makes the change of ``Cluster.alter_table`` in the newest definition.

    Raises:
        RequestError: the caller gave no change, or several.
        SchemaError: a text or object is not a column.
    """
    asked = [what for what in (add, rename, widen, drop, add_group) if what is not None]
    if len(asked) != 1 or group and add is None:
        raise RequestError(
            "a table is altered by one of: a column added, perhaps to a group; a group added; a column renamed,"
            " widened or dropped",
            "Give one of --add (perhaps with --group), --add-group, --rename, --widen and --drop at a time",
        )
    if add is not None:
        added = _given_field(add)
        return partial(alter.add_column, name=added.name, kind=added.type, group=group, uuid=uuid4(), now=now)
    if add_group is not None:
        columns = [(field.name, field.type, uuid4()) for field in given_schema(add_group[1])]
        return partial(alter.add_group, name=add_group[0], columns=columns, now=now)
    if rename is not None:
        return partial(alter.rename_column, old=rename[0], new=rename[1], now=now)
    if widen is not None:
        wider = _given_field(widen)
        return partial(alter.widen_column, name=wider.name, kind=wider.type)
    return partial(alter.drop_column, name=str(drop))


def _given_field(given: str | pa.Field) -> pa.Field:
    if isinstance(given, pa.Field):
        return given
    schema = parse_schema(given)
    if len(schema) != 1:
        raise SchemaError(f"{given!r} is more than one column", 'Give one, such as "seats int"')
    return schema.field(0)


def given_schema(given: object) -> pa.Schema:
    """An Arrow schema, or text such as ``id long, name string``, as a schema; SchemaError when it is neither."""
    if isinstance(given, pa.Schema):
        return given
    if isinstance(given, str):
        return parse_schema(given)
    if given is None:
        raise SchemaError(
            "a typed table needs a schema", 'Give one of Arrow, a text such as "id long, name string", or --like FILE'
        )
    try:
        return pa.schema(given)
    except (TypeError, ValueError, pa.ArrowInvalid) as error:
        raise SchemaError(f"{type(given).__name__} is not a schema: {error}", "Give an Arrow schema or text") from None
