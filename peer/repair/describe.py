"""What salvaging a file means, in words and as JSON, for a person."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from uuid import UUID

from replication.core.coverage import Ranges
from replication.core.ids import StreamId
from replication.error_text import counted
from replication.ledger.base import FileKind, SalvagePlan


def as_json(plan: SalvagePlan, names: Mapping[UUID, str]) -> dict[str, object]:
    """A plan for ``--json``, by the names of tables."""
    lost, gone = (sum(ranges.total for ranges in each.values()) for each in (plan.lost, plan.gone))
    return {
        "file": plan.row.file.local,
        "source": str(plan.row.source or ""),
        "frames_saved": len(plan.wanted) + len(plan.elsewhere),
        "frames_lost": gone,
        "frames_again": lost - gone,
        "lost": by_table(plan.gone, names),
        "again": [list(span) for span in plan.again],
        "again_bytes": plan.again.total,
        "at_peers": {peer: by_table(found, names) for peer, found in plan.at_peers.items()},
        "needs_bootstrap": {
            peer: {names.get(table, str(table)): count for table, count in tables.items()}
            for peer, tables in plan.lacking.items()
        },
        "unreadable_bytes": plan.unreadable_bytes,
        "unknown_bytes": plan.unknown_bytes,
    }


def lines(plan: SalvagePlan, names: Mapping[UUID, str]) -> Iterator[str]:
    """What a plan means, line by line."""
    if plan.row.is_redundant:
        is_control = plan.row.kind is FileKind.CONTROL
        again = "later control logs repeat it" if is_control else "replay writes another bootstrap if one is required"
        yield f"nothing is lost with it: {again}"
        return
    if plan.row.source is not None:
        yield from _comes_again(plan, names)
    else:
        yield from _is_lost(plan, names)
    for peer, tables in plan.lacking.items():
        for uuid, count in tables.items():
            table = names.get(uuid, str(uuid))
            yield (
                f"{peer} may not get up to {counted(count, 'frame')} of {table}, and needs a bootstrap of it: "
                f"walship bootstrap {peer} -t {table}"
            )
    for uuid in sorted(plan.doubtful):
        yield f"{names.get(uuid, str(uuid))} has no key, and has applied an unknown part of it: it cannot be salvaged"


def by_table(sequences: Mapping[StreamId, Ranges], names: Mapping[UUID, str]) -> dict[str, int]:
    """How many frames these are, by the name of their table."""
    made: dict[str, int] = {}
    for stream, ranges in sequences.items():
        name = names.get(stream.table, str(stream.table))
        made[name] = made.get(name, 0) + ranges.total
    return made


def _comes_again(plan: SalvagePlan, names: Mapping[UUID, str]) -> Iterator[str]:
    source = plan.row.source.cluster.name if plan.row.source is not None else ""
    gone = by_table(plan.gone, names)
    for table, count in by_table(plan.lost, names).items():
        if again := count - gone.get(table, 0):
            yield f"{counted(again, 'frame')} of {table} cannot be read here: {source} is asked again"
    for table, count in gone.items():
        yield (
            f"{counted(count, 'frame')} of {table} cannot be read here, and {source} sends them no more, since they are"
            f" from before a bootstrap or enablereplication; on {source}: walship bootstrap -t {table}"
            f" {plan.row.file.cluster.name}"
        )
    if plan.again:
        yield f"{source} ships {plan.again.total} bytes of {plan.row.source} again; replicated time waits for them"


def _is_lost(plan: SalvagePlan, names: Mapping[UUID, str]) -> Iterator[str]:
    for table, lost in by_table(plan.lost, names).items():
        yield f"lost here: {counted(lost, 'frame')} of {table}, which cannot be read and no table here has applied"
        for peer, found in plan.at_peers.items():
            there = by_table(found, names).get(table, 0)
            if there:
                yield (
                    f"{there} of these are at {peer}: to get their rows back, have it send the table here with"
                    " enablereplication --bootstrap, or bootstrap if it sends it already"
                )
    if not plan.row.closed:
        yield f"it was OPEN: what was written past {plan.row.needed} bytes and cannot be read now is not known"
    if plan.unknown_bytes:
        yield f"{plan.unknown_bytes} bytes that cannot be read were not in the ledger yet: of which tables is not known"
