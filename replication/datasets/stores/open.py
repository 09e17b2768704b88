"""Opens the store of an address: a path of this host, or any URL that fsspec understands."""

from __future__ import annotations

import os
from typing import Any

from replication.core.copying.configuration import CopyConfiguration
from replication.datasets.stores.archives import ArchivesStore
from replication.datasets.stores.base import Store
from replication.datasets.stores.local import LocalStore
from replication.datasets.stores.remote import FsspecStore
from replication.errors import RequestError

_LOCAL = ("file://", "local://")


def is_local(url: str) -> bool:
    """Whether an address is a path of this host."""
    return "://" not in url or url.startswith(_LOCAL)


def local_path(url: str) -> str:
    """The path of a local address."""
    for scheme in _LOCAL:
        url = url.removeprefix(scheme)
    return url


def absolute(url: str) -> str:
    """An address that means the same in any working directory."""
    return os.path.abspath(local_path(url)) if url and is_local(url) else url


def open_source(url: str, configuration: CopyConfiguration, options: dict[str, Any] | None = None) -> Store:
    """The store that a copy reads: its archives are folders if they are to be unpacked. Raises as ``open_store``."""
    store = open_store(url, options, follow_links=configuration.follow_links)
    unpacking = [each.text for each in configuration.conversions if each.unpacks]
    return ArchivesStore(store, unpacking) if unpacking else store


def check_address(url: str) -> None:
    """Raise RequestError for an address without a text or that is no UTF-8, and for a URL that lacks a slash."""
    if not url:
        raise RequestError("an address is empty", "Name a folder, or a URL such as s3://bucket/prefix")
    try:
        absolute(url).encode()
    except UnicodeEncodeError:
        raise RequestError(f"the address {url!r:.300} is no UTF-8", "Rename it, or name a link to it") from None
    scheme, is_url, rest = url.partition(":/")
    if is_url and not rest.startswith("/"):
        import fsspec  # deferred, as in remote.py

        if scheme in fsspec.available_protocols():
            raise RequestError(
                f"{url!r} has one slash after {scheme}:", f"Write {scheme}://{rest}, or ./{url} if it is a folder here"
            )


def open_store(url: str, options: dict[str, Any] | None = None, *, follow_links: bool = False) -> Store:
    """The store at a path or URL; ``options`` are of fsspec's driver, ``follow_links`` is of local stores.

    Raises:
        RequestError: the address is empty, no UTF-8, or a URL that lacks a slash or has ``::`` in it.
        StorageError: the driver is missing, or the store does not answer.
    """
    check_address(url)
    if is_local(url):
        return LocalStore(local_path(url), follow_links=follow_links)
    return FsspecStore(url, options)
