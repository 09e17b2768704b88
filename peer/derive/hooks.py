"""Hooks: Python functions over rows, found by name among the built-in ones and the entry points of ``walship.hooks``.

An entry point names a factory. The factory takes the hook's options (text by name) and returns a function. The function
gets some rows of the source as an Arrow table, and returns the rows and columns that remain. It must keep key columns,
which are the fields that are not nullable. Its result for a row may depend on that row alone. A factory may have an
attribute ``version``; when that changes, all rows go through the hook again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256

import pyarrow as pa

from peer.derive.select import select
from replication import plugins
from replication.core.definition.schema import TableSpec
from replication.core.ids import ClusterId
from replication.errors import HookError, ReplicationError, RequestError

GROUP = "walship.hooks"

Run = Callable[[pa.Table], pa.Table]
Factory = Callable[[Mapping[str, str]], Run]

BUILT_IN: Mapping[str, Factory] = {"select": select}


@dataclass(frozen=True, slots=True)
class Hook:
    """A hook with its options, ready to be called."""

    name: str
    version: str
    run: Run

    def __call__(self, rows: pa.Table) -> pa.Table:
        """The rows that remain.

        Raises:
            HookError: the hook raised, or did not return rows.
        """
        try:
            made = self.run(rows)
        except ReplicationError as error:
            raise HookError(f"hook {self.name}: {error.what}", error.hint) from None
        except BaseException as error:  # of a user's code: it stops that table only
            if plugins.is_interrupt(error):
                raise
            raise HookError(f"hook {self.name} failed: {type(error).__name__}: {error}"[:500]) from error
        if isinstance(made, pa.RecordBatch):
            made = pa.Table.from_batches([made])
        if not isinstance(made, pa.Table):
            raise HookError(f"hook {self.name} returned {type(made).__name__}, not an Arrow table")
        for name, count in Counter(made.column_names).items():
            if count > 1:
                raise HookError(f"hook {self.name} gave column {name} twice", "Replace a column with set_column")
        return made


#: The version of a derived table without a key when it is not known any more which rows of its source it has.
LOST = "lost"


def version_of(hook: Hook, cluster: ClusterId, spec: TableSpec) -> str:
    """The version of a derivation; when it changes, all rows are compared again.

    It covers the hook's version, the table's columns, and the cluster's incarnation, since a restore can bring back
    older rows.
    """
    columns = sha256(b"".join(sorted(column.uuid.bytes for column in spec.columns))).hexdigest()[:16]
    return f"{hook.version}/{cluster.incarnation}/{columns}"


def is_restored(before: str, now: str) -> bool:
    """Whether two versions are of two incarnations of the cluster, or the earlier one is ``LOST``."""
    return before == LOST or before.rsplit("/", 2)[-2] != now.rsplit("/", 2)[-2]


def lost_position(spec: TableSpec) -> RequestError:
    """The error of a derived table without a key whose source was rolled back or restored."""
    return RequestError(
        f"the source of {spec.name} was rolled back or restored, to before rows that were derived from it",
        "Without a key it is not known which rows it has by now:"
        f" walship droptable {spec.name}, and derive it under another name",
    )


def dropped_source(spec: TableSpec, source: str) -> RequestError:
    """The error of a derived table whose source was dropped."""
    return RequestError(
        f"{source}, which {spec.name} is derived from, was dropped here",
        f"The derived rows stay. If they are not needed: walship droptable {spec.name}",
    )


def load(name: str, options: Mapping[str, str]) -> Hook:
    """The hook of that name with these options.

    Raises:
        RequestError: no package or several have a hook of that name, it cannot be imported, or it does not take the
            options.
    """
    factory = plugins.found(GROUP, "hook", name, BUILT_IN)
    try:
        run, version = factory(dict(options)), str(getattr(factory, "version", "1"))
    except ReplicationError as error:
        raise RequestError(f"hook {name}: {error.what}", error.hint) from None
    except BaseException as error:
        if plugins.is_interrupt(error):
            raise
        raise RequestError(
            f"hook {name} does not take these options: {type(error).__name__}: {error}",
            "Correct -o; the hook's package says what it takes",
        ) from error
    return Hook(name, version, run)
