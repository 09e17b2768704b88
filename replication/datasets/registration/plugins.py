"""Registrars by name: walship's own, and those of installed packages, by the entry points ``walship.registrars``."""

from __future__ import annotations

from replication import plugins
from replication.datasets.registration.base import FileRegistrar
from replication.errors import RequestError

GROUP = "walship.registrars"


def registrar_of(text: str) -> FileRegistrar:
    """The registrar of ``KIND:NAME``.

    Raises:
        RequestError: there is no such kind, several packages have it, or it refuses the name.
    """
    kind, colon, name = text.partition(":")
    if not colon or not name:
        raise RequestError(f"{text!r} is not KIND:NAME", "Write for example iceberg:CATALOG.NAMESPACE.TABLE")
    registrar: FileRegistrar = plugins.found(GROUP, "registrar", kind, {"iceberg": _iceberg})(name)
    return registrar


def _iceberg(name: str) -> FileRegistrar:
    from replication.datasets.registration.iceberg import IcebergRegistrar  # deferred: PyIceberg is heavy

    return IcebergRegistrar(name)
