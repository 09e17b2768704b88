"""Small objects of S3 by obstore, each in one request: s3fs takes five times the CPU for it.

Only for a server whose endpoint is given, with keys that do not expire. botocore, below s3fs, knows the rest: regions,
roles, authorities of its own, and what other options ask for.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from fsspec.asyn import sync

_ENDPOINT = {"endpoint_url", "region_name"}
_RETRIES: Any = {"max_retries": 2, "retry_timeout": timedelta(seconds=30)}


class SmallObjects:
    """Objects below the paths of an ``S3FileSystem``.

    Raises:
        FileNotFoundError: by each method, if there is no such object.
        OSError: by each method, if the server refuses or does not answer.
    """

    def __init__(self, fs: Any, keys: dict[str, str]) -> None:
        self._split_path = fs.split_path
        self._given: dict[str, Any] = {**keys, "endpoint": fs.s3.meta.endpoint_url, "region": fs.s3.meta.region_name}
        self._stores: dict[str, Any] = {}

    @classmethod
    def of(cls, fs: Any) -> SmallObjects | None:
        """None if obstore is not installed, or would not do what s3fs does with these options."""
        try:
            import obstore  # noqa: F401
        except ImportError:
            return None
        endpoint = str(fs.s3.meta.endpoint_url)
        is_plain = not (fs.config_kwargs or fs.s3_additional_kwargs or fs.requester_pays or fs.version_aware or fs.anon)
        if not is_plain or not _ENDPOINT.issuperset(fs.client_kwargs) or endpoint.endswith(".amazonaws.com"):
            return None
        own_authority = fs.session.get_config_variable("ca_bundle") or os.environ.get("REQUESTS_CA_BUNDLE")
        if endpoint.startswith("https:") and own_authority:
            return None
        keys = _keys(fs)
        return cls(fs, keys) if keys else None

    def read(self, path: str) -> bytes:
        """The content of an object."""
        store, key = self._at(path)
        with _as_os_errors():
            return bytes(store.get(key).bytes())

    def write(self, path: str, data: bytes) -> None:
        """Make an object, in place of one that may be there. The server compares its SHA-256."""
        store, key = self._at(path)
        with _as_os_errors():
            store.put(key, data, use_multipart=False)

    def copy(self, path: str, kept: str) -> None:
        """Copy an object in the bucket, in place of one that may be there."""
        store, key = self._at(path)
        with _as_os_errors():
            store.copy(key, self._at(kept)[1])

    def info(self, path: str) -> dict[str, Any]:
        """What s3fs tells of an object."""
        store, key = self._at(path)
        with _as_os_errors():
            found = store.head(key)
        times = {"LastModified": found["last_modified"]}
        return {"name": path, "type": "file", "size": found["size"], "ETag": found["e_tag"], **times}

    def _at(self, path: str) -> tuple[Any, str]:
        bucket, key, _ = self._split_path(path)
        if (store := self._stores.get(bucket)) is None:
            from obstore.store import S3Store

            options: Any = {"allow_http": True, "connect_timeout": "5s", "timeout": "60s"}
            store = S3Store(bucket, **self._given, client_options=options, retry_config=_RETRIES)
            self._stores[bucket] = store
        return store, key


def _keys(fs: Any) -> dict[str, str]:
    """The keys of the options, the environment or a profile; none if they are not there, or expire."""
    key, secret, token = fs.key, fs.secret, fs.token
    if not key:
        found = sync(fs.loop, fs.session.get_credentials)
        if found is None or hasattr(found, "refresh_needed"):
            return {}
        key, secret, token = found.access_key, found.secret_key, found.token
    names = {"access_key_id": key, "secret_access_key": secret, "session_token": token}
    return {name: str(value) for name, value in names.items() if value}


@contextmanager
def _as_os_errors() -> Iterator[None]:
    from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

    try:
        yield
    except (PermissionDeniedError, UnauthenticatedError) as error:
        raise PermissionError(_first_line(error)) from error
    except BaseError as error:
        raise OSError(_first_line(error)) from error


def _first_line(error: Exception) -> str:
    """Without the dump of what obstore had at hand."""
    return str(error).partition("\n")[0]
