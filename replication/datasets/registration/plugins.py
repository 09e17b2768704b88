"""Registrars by name: walship's own, and those of installed packages, by the entry points ``walship.registrars``."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import cast

from replication.datasets.registration.base import FileRegistrar
from replication.errors import RequestError

GROUP = "walship.registrars"

#: Makes a registrar of the name that is behind its own.
RegistrarFactory = Callable[[str], FileRegistrar]


def registrar_of(text: str) -> FileRegistrar:
    """The registrar of ``KIND:NAME``.

    Raises:
        RequestError: there is no such kind, several packages have it, or it refuses the name.
    """
    kind, colon, name = text.partition(":")
    if not colon or not name:
        raise RequestError(f"{text!r} is not KIND:NAME", "Write for example iceberg:CATALOG.NAMESPACE.TABLE")
    if kind == "iceberg":
        from replication.datasets.registration.iceberg import IcebergRegistrar  # deferred: PyIceberg is heavy

        return IcebergRegistrar(name)
    found = list(entry_points(group=GROUP, name=kind))
    if len(found) != 1:
        known = sorted({"iceberg", *(point.name for point in entry_points(group=GROUP))})
        raise RequestError(f"{len(found)} registrars are called {kind!r}", f"Choose of {', '.join(known)}")
    return cast("RegistrarFactory", found[0].load())(name)
