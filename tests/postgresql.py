"""A throw-away PostgreSQL server for tests, from the machine's own packages."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

BINARIES = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"))
MISSING = "no PostgreSQL binaries under /usr/lib/postgresql: apt-get install postgresql"


class Server:
    """One server, run by a user who is not root.

    Args:
        home: its folder.
        listen: an address for TCP besides its Unix socket, and its ``port``; none when empty.
        settings: further settings.
        inside: a command before every other, for instance to run it in a network namespace.
        tls: certificate and key, to take nothing but TLS over TCP, from any address.
    """

    def __init__(
        self,
        home: Path,
        listen: str = "",
        port: int = 5432,
        settings: Mapping[str, str] | None = None,
        inside: tuple[str, ...] = (),
        tls: tuple[str, str] | None = None,
    ) -> None:
        self.home, self.listen, self.port = home, listen, port
        self._inside = inside
        self._as_user: tuple[str, ...] = ()
        if os.geteuid() == 0:
            shutil.chown(home, "postgres")
            self._as_user = ("runuser", "-u", "postgres", "--")
        self._run(BINARIES[-1].with_name("initdb"), "-D", self.data, "-U", "walship", "--auth=trust", "-N")
        kept = {
            "listen_addresses": f"'{listen}'",
            "port": str(port),
            "unix_socket_directories": f"'{home}'",
            "shared_buffers": "16MB",
            **(settings or {}),
        }
        if tls is not None:
            for name, source in zip(("server.crt", "server.key"), tls, strict=True):
                shutil.copy(source, f"{self.data}/{name}")
                shutil.chown(f"{self.data}/{name}", Path(self.data).owner(), Path(self.data).group())
                os.chmod(f"{self.data}/{name}", 0o600)
            kept["ssl"] = "on"
            with open(f"{self.data}/pg_hba.conf", "a") as file:
                file.write("hostssl all all 0.0.0.0/0 trust\n")
        with open(f"{self.data}/postgresql.conf", "a") as file:
            file.writelines(f"{key} = {value}\n" for key, value in kept.items())

    @property
    def data(self) -> str:
        return f"{self.home}/data"

    def url(self, database: str = "{database}") -> str:
        """The address of a database, over TCP if it listens there."""
        if self.listen:
            return f"postgresql+psycopg://walship@{self.listen}:{self.port}/{database}?connect_timeout=10"
        return f"postgresql+psycopg://walship@/{database}?host={self.home}&port={self.port}"

    def start(self) -> None:
        self._run(BINARIES[-1], "-D", self.data, "-l", f"{self.home}/log", "-w", "start")

    def stop(self, mode: str = "immediate") -> None:
        self._run(BINARIES[-1], "-D", self.data, "-w", "-m", mode, "stop")

    def reload(self) -> None:
        """Read pg_hba.conf again."""
        self._run(BINARIES[-1], "-D", self.data, "reload")

    def _run(self, *command: str | Path) -> None:
        """With its output in a file: a server holds on to a pipe."""
        whole = [*self._inside, *self._as_user, *map(str, command)]
        with open(f"{self.home}/commands", "ab+") as out:
            done = subprocess.run(whole, stdout=out, stderr=out, cwd=self.home, timeout=60)
        assert done.returncode == 0, f"{whole}\n{Path(self.home, 'commands').read_text()}"


@contextmanager
def server(
    listen: str = "",
    port: int = 5432,
    settings: Mapping[str, str] | None = None,
    inside: tuple[str, ...] = (),
    tls: tuple[str, str] | None = None,
) -> Iterator[Server]:
    """A running one in a temporary folder, gone at the end."""
    home = Path(tempfile.mkdtemp(prefix="walship-postgresql-"))
    made = None
    try:
        made = Server(home, listen, port, settings, inside, tls)
        made.start()
        yield made
    finally:
        if made is not None and Path(made.data, "postmaster.pid").exists():
            made.stop()
        shutil.rmtree(home)
