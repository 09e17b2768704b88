"""createtable, altertable, settable, derivetable, droptable, describetable, listtables."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from peer.client.definition import refuse_standby
from replication.core.definition.evolution import clashes
from replication.errors import RequestError, SchemaError
from shell.cli.invocation import Invocation, TableArgument, table_option
from shell.cli.pairs import pairs

if TYPE_CHECKING:
    from uuid import UUID

    from peer.client.cluster import Cluster
    from replication.core.definition.schema import TableSpec

_SETTING = "KEY=VALUE, or KEY= for the default"
LikeOption = Annotated[
    str | None,
    Option(
        "--like",
        metavar="FILE|CLUSTER",
        help="Take the columns of a sample file, or the same table of another cluster: a peer or host:port/root.",
    ),
]


@dataclass(frozen=True, slots=True)
class TableOptions:
    """How a new table is defined, beside its columns."""

    like: LikeOption = None
    key: Annotated[
        str,
        Option("--key", "-k", metavar="COL,…", help="The key columns. Without a key the table is append-only."),
    ] = ""
    group: Annotated[
        list[str] | None,
        Option("--group", "-g", metavar="NAME=COL,…", help="A locality group: columns, or families of a cell table."),
    ] = None
    partition: Annotated[
        list[str] | None,
        Option("--partition", "-p", metavar="TRANSFORM", help="An Iceberg transform, such as day(at)."),
    ] = None
    sort: Annotated[str, Option("--sort", metavar="COL,…", help="Columns to sort its files by.")] = ""
    kind: Annotated[str, Option("--kind", metavar="typed|cell", help="The kind of table.")] = "typed"
    history_s: Annotated[
        int | None,
        Option(
            "--history-s", metavar="SECONDS", help="How old a version may be when written. Default: [replay] history_s."
        ),
    ] = None


def createtable(
    invocation: Invocation,
    table: TableArgument,
    options: TableOptions,
    schema: Annotated[
        str | None, Argument(metavar="SCHEMA", help='Its columns: "id long, at timestamp, v double".')
    ] = None,
) -> None:
    """Create a table from a schema, a sample file or a table of another cluster."""
    if schema is not None and options.like is not None:
        raise RequestError("a schema and --like were both given", "Give one of them")
    columns, from_cluster = (schema, "") if options.like is None else _like(options.like)
    given = (options.key, options.group, options.partition, options.sort, options.kind != "typed")
    if from_cluster and (any(given) or options.history_s is not None):
        raise RequestError(f"the table is as it is at {from_cluster}", "With --like CLUSTER give only the table's name")
    with invocation.connect() as (cluster, printer):
        done = "is created"
        if from_cluster:
            refuse_standby(cluster.ledger)  # before ZooKeeper is asked for
            before = {each.uuid for each in cluster.tables()}
            spec = cluster.peering.adopt(table, from_cluster)
            if spec.uuid in before:
                done = f"was here already, and has all columns that it has at {from_cluster}"
        else:
            spec = cluster.create_table(
                table,
                columns,
                listed(options.key),
                groups={name: listed(columns) for name, columns in pairs(options.group or [], "NAME=COL,COL").items()},
                partition=options.partition or [],
                sort=listed(options.sort),
                kind=options.kind,
                history_s=options.history_s,
            )
        printer.value(described(spec), f"{spec.name} {done}. Write to it: walship write {spec.name} FILE")


def _like(text: str) -> tuple[object, str]:
    """What ``--like`` means: the columns of a sample file, or the cluster that has the table."""
    if not Path(text).is_file() and _may_be_cluster(text):
        return None, text
    from shell.rows.files import schema_of

    return schema_of(Path(text)), ""


def altertable(
    invocation: Invocation,
    table: TableArgument,
    add: Annotated[str | None, Option("--add", metavar="'NAME TYPE'", help="Add a column.")] = None,
    group: Annotated[
        str, Option("--group", "-g", metavar="GROUP", help="The locality group to add the column to.")
    ] = "",
    rename: Annotated[tuple[str, str] | None, Option("--rename", metavar="OLD NEW", help="Rename a column.")] = None,
    widen: Annotated[
        tuple[str, str] | None,
        Option(
            "--widen",
            metavar="NAME TYPE",
            help="Widen a column: int to bigint, float to double, decimal to more digits.",
        ),
    ] = None,
    drop: Annotated[str | None, Option("--drop", metavar="NAME", help="Drop a column.")] = None,
    add_group: Annotated[
        str | None,
        Option("--add-group", metavar="'NAME=COL TYPE,…'", help="Add a locality group of new columns."),
    ] = None,
) -> None:
    """Change a column of a table, or add a locality group; peers follow."""
    added: tuple[str, str] | None = None
    if add_group is not None:
        name, equals, columns = add_group.partition("=")
        if not equals or not columns.strip():
            raise SchemaError(f"{add_group!r} is not a locality group", "Write 'NAME=COL TYPE,COL TYPE'")
        added = (name.strip(), columns)
    with invocation.connect() as (cluster, printer):
        spec = cluster.alter_table(
            table,
            add=add,
            group=group,
            rename=rename,
            widen=" ".join(widen) if widen else None,
            drop=drop,
            add_group=added,
        )
        columns = ", ".join(f"{column.name} {column.type}" for column in spec.columns)
        printer.value(described(spec), f"{spec.name} has the columns {columns}; peers follow")
        if drop and (derived := _derived_from(cluster, spec.uuid)):
            printer.note(
                f"Derived tables keep the values of {drop} that they took. In later rows their hooks find NULL, so a"
                f" condition on {drop} leaves these rows out: {', '.join(derived)}"
            )


def settable(
    invocation: Invocation,
    table: TableArgument,
    settings: Annotated[
        list[str],
        Argument(
            metavar="KEY=VALUE",
            help="max_age_s, history_s, changes_retention_s, sort, codec, or one of Iceberg. KEY= resets.",
        ),
    ],
) -> None:
    """Set properties of a table."""
    given = pairs(settings, _SETTING)
    with invocation.connect() as (cluster, printer):
        spec = cluster.set_table(table, given)
        printer.value(
            described(spec), f"set for {spec.name}: {', '.join(given)}; peers that take its properties follow"
        )


def derivetable(
    invocation: Invocation,
    table: TableArgument,
    source: Annotated[str, table_option("The source table.", "--from")] = "",
    hook: Annotated[
        str,
        Option("--hook", metavar="NAME", help="select, or a hook of a package (walship.hooks)."),
    ] = "",
    option: Annotated[
        list[str] | None,
        Option(
            "--option",
            "-o",
            metavar="KEY=VALUE",
            help="An option of the hook. select takes where, columns, without, null, hash and salt.",
        ),
    ] = None,
) -> None:
    """Derive a table from another by a hook that drops rows or masks columns, or change its hook."""
    given = pairs(option or [], _SETTING)
    with invocation.connect() as (cluster, printer):
        before = {made.table: made.generation for made in cluster.ledger.derivations.all()}
        spec = cluster.derive_table(table, source, hook, given)
        columns = ", ".join(f"{column.name} {column.type}" for column in spec.columns)
        after = {made.table: made.generation for made in cluster.ledger.derivations.all()}
        how = "anew, all rows of it," if spec.uuid in before and spec.key else "from now on,"
        if before.get(spec.uuid) == after[spec.uuid]:
            how = "by this hook already,"
        printer.value(
            described(spec), f"{spec.name} is derived {how} with {columns}. To see how far it is: walship status"
        )


def droptable(invocation: Invocation, table: TableArgument) -> None:
    """Drop a table on this cluster; peers keep theirs.

    Its Iceberg tables stay. They are renamed to TABLE__dropped_... when another table takes the name.
    """
    with invocation.connect() as (cluster, printer):
        uuid = cluster.table(table).uuid
        derived = _derived_from(cluster, uuid)
        cluster.drop_table(table)
        printer.value({"dropped": table, "derived": derived}, f"{table} is dropped here; peers keep theirs")
        if derived:
            printer.note(f"Derived tables that get no more rows: {', '.join(derived)}")


def _derived_from(cluster: Cluster, table: UUID) -> list[str]:
    names = {spec.uuid: spec.name for spec in cluster.tables()}
    return sorted(names[d.table] for d in cluster.ledger.derivations.all() if d.source == table)


def describetable(invocation: Invocation, table: TableArgument) -> None:
    """Show a table's columns, key, locality groups and peers."""
    with invocation.connect() as (cluster, printer):
        spec = cluster.table(table)
        rules = [rule for rule in cluster.ledger.rules.all() if rule.table == spec.uuid]
        shown = described(spec)
        shown["replicated_to"] = [f"{r.peer}: group {r.group} as {r.remote_table}" for r in rules]
        if printer.as_json:
            printer.value(shown)
            return
        columns = shown.pop("columns")
        shown["replicated_to"] = ", ".join(f"{r.peer}: group {r.group} as {r.remote_table}" for r in rules)
        printer.value({name: value for name, value in shown.items() if value != ""})
        printer.rows(columns if isinstance(columns, list) else [], ("name", "type", "in"))
        for note in clashes(spec):
            printer.note(note)


def listtables(invocation: Invocation) -> None:
    """List the tables."""
    with invocation.connect() as (cluster, printer):
        rules = cluster.ledger.rules.all()
        rows = [
            {
                "name": spec.name,
                "kind": spec.kind,
                "key": ", ".join(spec.key),
                "columns": len(spec.stamps),
                "groups": ", ".join(group.name for group in spec.groups),
                "replicated_to": ", ".join(sorted({rule.peer for rule in rules if rule.table == spec.uuid})),
                "uuid": str(spec.uuid),
            }
            for spec in cluster.tables()
        ]
        columns = ("name", "kind", "key", "columns", "groups", "replicated_to")
        printer.rows(rows, columns, "no tables; see walship createtable")


def described(spec: TableSpec) -> dict[str, object]:
    """A table's definition, for printing."""
    place = {name: "key" for name in spec.key}
    for group in spec.groups:
        place |= dict.fromkeys(spec.group_columns(group.name), f"group {group.name}")
    own = {name: spec.setting(name) for name in ("changes_retention_s", "max_age_s", "codec")}
    properties = {**spec.properties, **{name: value for name, value in own.items() if value}}
    return {
        "table": spec.name,
        "uuid": str(spec.uuid),
        "kind": spec.kind,
        "key": ", ".join(spec.key),
        "groups": ", ".join(f"{g.name}({', '.join(g.members)})" for g in spec.groups),
        "partition": ", ".join(spec.partition),
        "sort": ", ".join(spec.sort),
        "history_s": spec.history_s,
        "derived": f"at {spec.derived}" if spec.derived else "",
        "properties": ", ".join(f"{name}={value}" for name, value in properties.items()),
        "columns": [
            {
                "name": column.name,
                "type": str(column.type),
                "in": place.get(column.name, ""),
                "uuid": str(column.uuid),
                "wanted": column.wanted,
            }
            for column in spec.columns
        ],
    }


def _may_be_cluster(text: str) -> bool:
    """Whether ``--like`` names a cluster: a peer's name, or an address such as ``zk1:2181,zk2:2181/east``."""
    address = ":" in text and "/" in text and not text.startswith(("/", "."))
    return address or not ("/" in text or Path(text).suffix)


def listed(text: str) -> list[str]:
    """``a, b`` as a list."""
    return [part.strip() for part in text.split(",") if part.strip()]
