"""The paths by which each origin comes to a cluster, and which of them are silent, as in a broken ring."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from uuid import UUID

from replication.core.ids import ClusterId
from replication.core.routes.carried import InboundRoute

_NAMES_MAX = 5


@dataclass(frozen=True, slots=True)
class InboundPath:
    """One path from an origin to this cluster: the clusters' names, origin first, this one last.

    ``groups`` counts the (table, group) on that path. ``silent_s`` is for how long a cluster on it has not been seen by
    the next one, None while all are seen. Of the tables on a silent path, ``stranded`` have no other path, and
    ``instead`` are the paths of the rest.
    """

    path: tuple[str, ...]
    groups: int
    silent_s: float | None
    stranded: tuple[str, ...] = ()
    instead: tuple[tuple[str, ...], ...] = ()

    def __str__(self) -> str:
        """``north → west → east``."""
        return _arrows(self.path)


def paths(
    routes: Iterable[InboundRoute], own: ClusterId, now: int, names: Mapping[UUID, str]
) -> dict[ClusterId, tuple[InboundPath, ...]]:
    """Every origin with its paths over open routes: live ones first, then the shortest.

    ``now`` is in microseconds since 1970.
    """
    found: dict[ClusterId, dict[_Path, dict[_Stream, int]]] = {}
    for route in routes:
        for each in route.paths(now):
            if own not in each.path:
                of_path = found.setdefault(each.origin, {}).setdefault(each.path, {})
                of_path[route.table, route.group] = each.silent_since
    return {origin: tuple(_of_origin(of_origin, own, now, names)) for origin, of_origin in found.items()}


_Path = tuple[ClusterId, ...]
_Stream = tuple[UUID, str]


def _of_origin(
    paths: Mapping[_Path, Mapping[_Stream, int]], own: ClusterId, now: int, names: Mapping[UUID, str]
) -> list[InboundPath]:
    made = []
    for path, streams in paths.items():
        since = max(streams.values())
        if not since:
            made.append(InboundPath(_names(path, own), len(streams), None))
            continue
        stranded = set(streams)
        instead = []
        for other, coming in paths.items():
            live = {stream for stream in streams if coming.get(stream) == 0}
            stranded -= live
            instead += [_names(other, own)] if live else []
        made.append(
            InboundPath(
                _names(path, own),
                len(streams),
                round((now - since) / 1e6, 1),
                tuple(sorted({names.get(table, str(table)) for table, _ in stranded})),
                tuple(sorted(instead, key=lambda path: (len(path), path))),
            )
        )
    return sorted(made, key=lambda each: (each.silent_s is not None, len(each.path), each.path))


def silent_path_messages(origin: str, found: Iterable[InboundPath]) -> list[str]:
    """Messages about an origin's paths, a sentence per silent one; none when all are live."""
    return [
        f"{origin} no longer comes by {each}: silent for {each.silent_s:.0f} s (down, paused or unreachable); "
        f"{_rest(each)}"
        for each in found
        if each.silent_s is not None
    ]


def _rest(silent: InboundPath) -> str:
    instead = "; ".join(_arrows(other) for other in silent.instead)
    if not instead:
        return "there is no other route, so its replicated time stands still"
    if not silent.stranded:
        return f"it comes by {instead}"
    more = len(silent.stranded) - _NAMES_MAX
    named = ", ".join(silent.stranded[:_NAMES_MAX]) + (f" and {more} more" if more > 0 else "")
    return f"there is no other route for {named}, so replicated time stands still there; the rest comes by {instead}"


def _names(path: _Path, own: ClusterId) -> tuple[str, ...]:
    return (*(hop.name for hop in path), own.name)


def _arrows(path: tuple[str, ...]) -> str:
    return " → ".join(path)
