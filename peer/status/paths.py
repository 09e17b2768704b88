"""By which routes each origin comes to a cluster, and which of them have gone silent: how a broken ring shows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from uuid import UUID

from replication.core.ids import ClusterId
from replication.core.routes.carried import InboundRoute

_NAMES_MAX = 5


@dataclass(frozen=True, slots=True)
class InboundPath:
    """One way from an origin to this cluster: the clusters' names, origin first, this one last.

    ``groups`` are how many (table, group) come that way. ``silent_s`` is for how long a cluster on it has not been
    heard by the next one, None while all are heard. Of what came by a silent way, ``stranded`` are the tables that come
    by no other, and ``instead`` the paths by which the rest comes.
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
    """Every origin that comes by open routes with its paths: those that are heard first, the shortest first.

    Args:
        routes: the open routes into the cluster.
        own: the cluster.
        now: microseconds since 1970.
        names: of the cluster's tables.
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
            heard = {stream for stream in streams if coming.get(stream) == 0}
            stranded -= heard
            instead += [_names(other, own)] if heard else []
        made.append(
            InboundPath(
                _names(path, own),
                len(streams),
                round((now - since) / 1e6, 1),
                tuple(sorted({names.get(table, str(table)) for table, _ in stranded})),
                tuple(sorted(instead, key=lambda way: (len(way), way))),
            )
        )
    return sorted(made, key=lambda way: (way.silent_s is not None, len(way.path), way.path))


def broken(origin: str, found: Iterable[InboundPath]) -> list[str]:
    """What to tell a person of an origin's paths, a sentence per broken one; nothing when all are heard."""
    return [
        f"{origin} no longer comes by {way}: silent for {way.silent_s:.0f} s (down, paused or unreachable); "
        f"{_rest(way)}"
        for way in found
        if way.silent_s is not None
    ]


def _rest(way: InboundPath) -> str:
    instead = "; ".join(_arrows(other) for other in way.instead)
    if not instead:
        return "there is no other route, so its replicated time stands"
    if not way.stranded:
        return f"it comes by {instead}"
    more = len(way.stranded) - _NAMES_MAX
    named = ", ".join(way.stranded[:_NAMES_MAX]) + (f" and {more} more" if more > 0 else "")
    return f"there is no other route for {named}, so replicated time stands there; the rest comes by {instead}"


def _names(path: _Path, own: ClusterId) -> tuple[str, ...]:
    return (*(hop.name for hop in path), own.name)


def _arrows(path: tuple[str, ...]) -> str:
    return " → ".join(path)
