"""A ZooKeeper server as a child process, from PySpark's jars: the default for clusters of one host.

Its data is on disk and survives restarts. It listens on loopback by default, runs no admin server, and answers only the
four-letter words ``ruok`` and ``srvr``. The process that starts it must stop it. A server left over from a killed owner
is found by its pid file and replaced.

Set-up archives the server's classes once per Python environment: ``python -m replication.coordination.embedded``. With
the archive the JVM starts sooner and takes less memory. Another JVM, or one with other jars, ignores it.
"""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from replication.coordination.tls import ZookeeperTls
from replication.errors import ConfigError, CoordinationError, ReplicationError
from replication.settings import join_address
from replication.tables.spark.jars import archive_options, java_home_check, new_class_archive

MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_JARS = ("zookeeper", "slf4j-api", "log4j", "metrics-core", "snappy-java")
_JARS_TLS = (*_JARS, "netty")
_ARCHIVE = "zookeeper"
_PORT_S = 5.0
_LOG4J = """\
rootLogger.level = error
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.target = SYSTEM_ERR
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{ISO8601} %p %c{1} %m%n%ex{3}
"""


# Timers of the JVM that wake it several times a second for nothing. A server without worker threads hands each of the
# few requests through two threads less.
_QUIET_JVM = (
    "-XX:+IgnoreUnrecognizedVMOptions",
    "-XX:+UnlockDiagnosticVMOptions",
    "-XX:AsyncDeflationInterval=60000",
    "-XX:GuaranteedSafepointInterval=0",
    "-Dzookeeper.nio.numSelectorThreads=1",
    "-Dzookeeper.nio.numWorkerThreads=0",
)

# Sets the parent-death signal, then execs the command given as arguments.
_DIE_WITH_PARENT = """
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
if os.getppid() == int(sys.argv[1]):
    os.execvp(sys.argv[2], sys.argv[2:])
"""


class EmbeddedZookeeper:
    """The server. ``start`` returns when it serves requests, ``stop`` when the process has ended.

    It does not outlive its owner. On Linux the kernel kills it with the thread that called ``start``. Elsewhere the
    next start in the same directory ends a server whose owner was killed.

    Args:
        directory: for data, configuration, log and pid file; created when missing.
        port: the port it listens on; 0 for a free one.
        host: the address it binds.
        tls: serve only TLS, to clients with a certificate of the same authority.
        archive_to: a file to which the JVM writes its classes when it ends.
    """

    def __init__(
        self,
        directory: Path,
        port: int,
        *,
        host: str = "127.0.0.1",
        heap_mb: int = 256,
        tls: ZookeeperTls | None = None,
        archive_to: Path | None = None,
    ) -> None:
        self._archive_to = archive_to
        self._directory = directory.resolve()
        self._host = host
        self._port = port or _free_port(host)
        self._heap_mb = heap_mb
        self._tls = tls
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> EmbeddedZookeeper:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def servers(self) -> str:
        """``host:port``, for clients."""
        return join_address(self._host, self._port)

    @property
    def pid(self) -> int | None:
        """The server's process id while it runs, else None."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def alive(self) -> bool:
        """Whether the process runs and serves requests. Uses ``srvr``, since ``ruok`` is answered too early.

        Raises:
            ssl.SSLCertVerificationError: its certificate is not one for the address it binds, or has expired.
        """
        return self.pid is not None and "Mode:" in four_letter_word(self._host, self._port, "srvr", self._tls)

    def start(self, timeout_s: float = 30.0) -> None:
        """Start and wait until it serves requests.

        Raises:
            ConfigError: Java or PySpark is missing, another program uses the port, or the certificate does not fit.
            CoordinationError: the server ended or did not answer in time; the message has its last log lines.
        """
        assert self.pid is None, "already started"
        command = self._command()
        for folder in (self._directory, self._directory / "data"):
            folder.mkdir(parents=True, exist_ok=True)
        self._check_port(_PORT_S if self._end_leftover() else 0.0)
        (self._directory / "zoo.cfg").write_text(self._configuration())
        (self._directory / "log4j2.properties").write_text(_LOG4J)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                dying_with_parent(command),
                cwd=self._directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._pid_file.write_text(str(self._process.pid))
        deadline = time.monotonic() + timeout_s
        try:
            while not self.alive():
                if self._process.poll() is not None or time.monotonic() > deadline:
                    self.stop()
                    raise CoordinationError(f"ZooKeeper did not start: {self._last_lines()}", f"See {self._log}")
                time.sleep(0.05)
        except ssl.SSLCertVerificationError as error:
            self.stop()
            raise ConfigError(
                f"the certificate of ZooKeeper cannot be used on {self._host}: {error.verify_message}",
                "Correct [zookeeper] cert, ca or listen: it must be valid now, and name the address of listen",
            ) from None

    def wait(self) -> None:
        """Wait until the process has ended, by itself or by ``stop`` in another thread."""
        if (process := self._process) is not None:
            process.wait()

    def stop(self, timeout_s: float = 10.0) -> None:
        """Stop and wait until it has ended. Idempotent. Safe at any moment: everything it acked is on disk."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()
        self._process = None
        self._pid_file.unlink(missing_ok=True)

    @property
    def _log(self) -> Path:
        return self._directory / "server.log"

    @property
    def _pid_file(self) -> Path:
        return self._directory / "pid"

    def _command(self) -> list[str]:
        jars = find_jars()
        names = _JARS if self._tls is None else _JARS_TLS
        wanted = sorted(str(jar) for jar in jars.glob("*.jar") if jar.name.startswith(names))
        return [
            str(Path(java_home_check()) / "bin" / "java"),
            f"-Xmx{self._heap_mb}m",
            "-Xmn4m",  # less garbage between two collections: 20 MiB less memory
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-XX:-UsePerfData",
            *_QUIET_JVM,
            *archive_options(_ARCHIVE, self._archive_to),
            "-Dzookeeper.jmx.log4j.disable=true",
            f"-Dlog4j2.configurationFile={(self._directory / 'log4j2.properties').as_uri()}",
            "-cp",
            os.pathsep.join(wanted),
            MAIN,
            str(self._directory / "zoo.cfg"),
        ]

    def _configuration(self) -> str:
        prefix = "clientPort" if self._tls is None else "secureClientPort"
        return "\n".join(
            (
                "dataDir=./data",  # relative to its working directory: Java reads this file as Latin-1
                f"{prefix}={self._port}",
                f"{prefix}Address={self._host}",
                *(() if self._tls is None else self._tls_lines(self._tls)),
                "tickTime=1000",
                "maxClientCnxns=0",
                "admin.enableServer=false",
                "4lw.commands.whitelist=ruok,srvr",
                "autopurge.snapRetainCount=3",
                "autopurge.purgeInterval=1",
                "",
            )
        )

    def _tls_lines(self, tls: ZookeeperTls) -> list[str]:
        pem = self._directory / "server.pem"  # ZooKeeper needs key and certificate in one file
        pem.touch(mode=0o600)
        pem.write_text(Path(tls.key).read_text() + Path(tls.certificate).read_text())
        return [
            "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
            f"ssl.keyStore.location={_property(pem)}",
            "ssl.keyStore.type=PEM",
            f"ssl.trustStore.location={_property(tls.ca)}",
            "ssl.trustStore.type=PEM",
            "ssl.clientAuth=need",
            "ssl.enabledProtocols=TLSv1.3,TLSv1.2",
        ]

    def _check_port(self, retry_s: float) -> None:
        deadline = time.monotonic() + retry_s
        while True:
            try:
                with socket.socket(socket.AF_INET6 if ":" in self._host else socket.AF_INET) as probe:
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    probe.bind((self._host, self._port))
                return
            except OSError as error:
                if time.monotonic() > deadline:
                    hint = "Stop the program that uses the port, or set another: [zookeeper] port"
                    if error.errno != errno.EADDRINUSE:
                        hint = "Correct [zookeeper] listen and port"
                    raise ConfigError(f"ZooKeeper cannot listen on {self.servers}: {error.strerror}", hint) from None
            time.sleep(0.05)

    def _end_leftover(self) -> bool:
        """End this directory's server, left over from a killed owner: by its pid, if that is still this server.

        Returns whether there was one. It may hold its port a moment after its command line is gone from ``/proc``.
        """
        try:
            pid = int(self._pid_file.read_text())
        except (OSError, ValueError):
            return False
        deadline = time.monotonic() + 10.0
        while str(self._directory / "zoo.cfg") in command_line(pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL if time.monotonic() > deadline else signal.SIGTERM)
            time.sleep(0.1)
        self._pid_file.unlink(missing_ok=True)
        return True

    def _last_lines(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines() if self._log.exists() else []
        return " | ".join(lines[-3:]) or "its log is empty"


def make_class_archive() -> None:
    """Run a server and archive the classes it loads: 1 s, 12 MB.

    Raises:
        OSError: the Python environment is not writable.
        ReplicationError: ZooKeeper does not start.
    """
    with (
        new_class_archive(_ARCHIVE) as made,
        tempfile.TemporaryDirectory(prefix="walship-archive-") as scratch,
        EmbeddedZookeeper(Path(scratch), 0, archive_to=made),
    ):
        pass


def command_line(pid: int) -> str:
    """The command line of a process; empty when it has ended or is a zombie."""
    import psutil  # deferred: only what a killed owner left needs it

    try:
        return " ".join(psutil.Process(pid).cmdline())
    except (psutil.Error, ValueError):
        return ""


def _property(path: str | Path) -> str:
    """A path as text for Java's property files, with non-ASCII characters escaped."""
    return json.dumps(str(path))[1:-1]


def four_letter_word(host: str, port: int, word: str, tls: ZookeeperTls | None = None, timeout_s: float = 1.0) -> str:
    """ZooKeeper's answer to ``word``; empty when there is none.

    Raises:
        ssl.SSLCertVerificationError: its certificate is not one for ``host``, or has expired.
    """
    answer = b""
    try:
        with socket.create_connection((host, port), timeout_s) as plain:
            connection = plain if tls is None else tls.context().wrap_socket(plain, server_hostname=host)
            with connection:
                connection.sendall(word.encode())
                while received := connection.recv(4096):
                    answer += received
    except ssl.SSLCertVerificationError:
        raise
    except (OSError, ssl.SSLError):
        pass
    return answer.decode(errors="replace")


def dying_with_parent(command: list[str]) -> list[str]:
    """Wrap ``command`` so that on Linux the kernel kills it when the thread that started it ends.

    A process can only request this for itself, and the request survives exec. So a short Python process makes the
    request and then execs ``command``.
    """
    if sys.platform != "linux":
        return command
    return [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid()), *command]


def find_jars() -> Path:
    """The folder of PySpark's jars, which include ZooKeeper; ConfigError when PySpark is not installed."""
    found = importlib.util.find_spec("pyspark")
    if found is None or not found.submodule_search_locations:
        raise ConfigError(
            "the embedded ZooKeeper is part of PySpark, which is not installed",
            "Run pip install 'walship[spark]', or set [zookeeper] servers to a running ZooKeeper",
        )
    return Path(found.submodule_search_locations[0]) / "jars"


def _free_port(host: str) -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    try:
        make_class_archive()
    except (OSError, ReplicationError) as error:
        print(f"No archive of ZooKeeper's classes ({error}); it works, but starts slower", file=sys.stderr)
