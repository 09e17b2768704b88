"""Requests to S3 that follow no redirect: aiobotocore's would, with the session token, to whatever server it names.

``store.direct`` has fsspec's driver use them.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from replication.errors import StorageError

_REGION = "x-amz-bucket-region"  # botocore asks there again, by an address that it makes itself
_Session: Any = import_module("aiobotocore.httpsession").AIOHTTPSession


class DirectSession(_Session):  # type: ignore[misc]
    """For ``http_session_cls`` of aiobotocore's configuration. A redirect is an error, unless it names a region."""

    async def _get_session(self, proxy_url: str | None) -> _Direct:
        return _Direct(await super()._get_session(proxy_url))


class _Direct:
    def __init__(self, session: Any) -> None:
        self._session = session

    async def request(self, *given: Any, **named: Any) -> Any:
        response = await self._session.request(*given, **named, allow_redirects=False)
        if "location" in response.headers and 300 <= response.status < 400 and _REGION not in response.headers:
            response.close()
            raise StorageError(
                f"the S3 server redirects to {response.headers['location'][:200]!r}, which is not followed",
                "Give the address of the server itself as endpoint_url",
            )
        return response
