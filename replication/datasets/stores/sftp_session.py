"""What paramiko leaves out of a session of SFTP: the end of one whose server is silent, and a streamed listing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from typing import Any

_SILENT_S = 300.0


def watch(sftp: Any) -> None:
    """Have each call of a session fail with TimeoutError once the server has been silent for ``_SILENT_S``."""
    sftp.sock.settimeout(_SILENT_S)
    sftp.sock = _WatchedChannel(sftp.sock)


def listed(sftp: Any, path: str) -> Iterator[Any]:
    """What SFTP tells of each name in a folder, with no answer awaited between two of them.

    paramiko's own iterator has fifty on their way: another call meanwhile takes them, and both wait for ever.
    """
    protocol: Any = import_module("paramiko.sftp")
    attributes: Any = import_module("paramiko.sftp_attr").SFTPAttributes
    handle = sftp._request(protocol.CMD_OPENDIR, sftp._adjust_cwd(path))[1].get_binary()
    try:
        while True:
            answer = sftp._request(protocol.CMD_READDIR, handle)[1]
            for _ in range(answer.get_int()):
                found = attributes._from_msg(answer, answer.get_text(), answer.get_text())
                if found.filename not in (".", ".."):
                    yield found
    except EOFError:  # the folder's end
        return
    finally:
        with suppress(Exception):  # the connection may be lost
            sftp._request(protocol.CMD_CLOSE, handle)


class _WatchedChannel:
    """A channel that is closed when the server is silent: its late answer would be taken for that to another call."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel

    def recv(self, size: int) -> bytes:
        return bytes(self._timed(self._channel.recv, size))

    def send(self, data: Any) -> int:
        return int(self._timed(self._channel.send, data))

    def _timed(self, call: Any, given: Any) -> Any:
        try:
            return call(given)
        except TimeoutError:
            self._channel.close()
            raise TimeoutError(f"the server has been silent for {_SILENT_S:g} s") from None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)
