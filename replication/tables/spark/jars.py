"""Find Java, archives of its classes, and the jars that Spark needs besides its own: fetched once, checked, kept.

Used by the Spark session, the embedded ZooKeeper and set-up. ``jars.sha256`` lists the jars and their SHA-256 sums.
Spark's own resolver fetches them, so a site's mirrors and proxies apply as for any Spark job. They are stored per user
in ``$WALSHIP_CACHE/jars``, by default ``$XDG_CACHE_HOME/walship/jars`` or ``~/.cache/walship/jars``.
Imports only the standard library and ``replication.errors``: set-up calls it before anything is installed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from replication.errors import ConfigError, SparkMissingError

JAVA_VERSIONS = (17, 21)
FETCH_TIMEOUT_S = 900
POSTGRESQL = "postgresql"
_LOCALE = os.environ.get("LC_ALL")  # with which Python started
_SUMS = Path(__file__).with_name("jars.sha256")
_OF_PYSPARK = "org.apache.hadoop:hadoop-client-api,org.apache.hadoop:hadoop-client-runtime"  # it has them already
_MODULE = "jdk.incubator.vector"
_WITH_SPARK = "Install walship[spark], or list existing jars under [replay] jars"


@dataclass(frozen=True, slots=True)
class Jar:
    """A jar by its Maven coordinates and the SHA-256 sum it must have."""

    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def coordinates(self) -> str:
        """``group:artifact:version``."""
        return f"{self.group}:{self.artifact}:{self.version}"

    @property
    def file_name(self) -> str:
        """``artifact-version.jar``."""
        return f"{self.artifact}-{self.version}.jar"


def allow_any_path(environment: MutableMapping[str, str]) -> None:
    """Change the C locale to C.UTF-8 for Java processes, which otherwise cannot open non-ASCII paths.

    A locale that is not installed is the C locale, too: Python then takes paths for UTF-8.
    """
    given = environment.get("LC_ALL")
    if given in ("C", "POSIX") or (given and given == _LOCALE and sys.flags.utf8_mode):
        environment["LC_ALL"] = "C.UTF-8"


def pinned_jars(also: str = "") -> list[Jar]:
    """Return the jars of ``jars.sha256``, and those of ``jars-<also>.sha256``, which few clusters need."""
    lines = _SUMS.read_text(encoding="ascii").splitlines()
    if also:
        lines += _SUMS.with_name(f"jars-{also}.sha256").read_text(encoding="ascii").splitlines()
    found = []
    for line in lines:
        sha256, coordinates = line.split()
        group, artifact, version = coordinates.split(":")
        found.append(Jar(group, artifact, version, sha256))
    return found


def cache_dir() -> Path:
    """Return the folder of this user's jars. ConfigError: the user has no home, and nothing names another place."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    found = os.environ.get("WALSHIP_CACHE") or f"{base}/walship"
    if found.startswith("~"):
        raise ConfigError("this user has no home folder, where Spark's jars would be", "Set WALSHIP_CACHE to a folder")
    return Path(found) / "jars"


def ensure_jars(given: Sequence[Path] = (), also: str = "") -> list[Path]:
    """Return the paths of the jars for ``spark.jars``. Jars that are not in the cache are fetched and checked.

    Args:
        given: the jars of the configuration, which ``checked_jars`` has checked. Nothing is fetched then.
        also: ``POSTGRESQL`` adds its driver, for a catalog in PostgreSQL.

    Raises:
        ConfigError: a given jar does not exist, or the jars cannot be fetched, or a sum is wrong.
        SparkMissingError: jars must be fetched, and PySpark is not installed.
    """
    return list(given) or fetched(pinned_jars(also))


def fetched(jars: Sequence[Jar]) -> list[Path]:
    """Return the paths of jars; those that are not in the cache are fetched and checked. Raises as ``ensure_jars``."""
    folder = cache_dir()
    missing = [jar for jar in jars if not _is_sound(folder / jar.file_name, jar)]
    if missing:
        _fetch(folder, missing)
    return [folder / jar.file_name for jar in jars]


def checked_jars(given: Sequence[Path], sums: Iterable[str]) -> Sequence[Path]:
    """Return the jars of the configuration. ``sums`` are SHA-256 sums that they may have besides those of pinned jars.

    Raises:
        ConfigError: a jar does not exist, or has another sum.
    """
    if absent := [str(path) for path in given if not path.is_file()]:
        raise ConfigError(f"there is no jar {', '.join(absent)}", "Correct [replay] jars")
    known = {*(each.strip().lower() for each in sums), *(jar.sha256 for jar in pinned_jars(POSTGRESQL))}
    for path in given:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found not in known:
            raise ConfigError(
                f"{path} is not loaded: [replay] jars_sha256 does not have its SHA-256 sum",
                f'If it is the jar that you mean, add "{found}" to [replay] jars_sha256',
            )
    return given


def java_home_check() -> str:
    """Return ``JAVA_HOME`` of a working Java 17 or 21: by ``JAVA_HOME``, ``PATH``, or the usual folders, in that order.

    Raises:
        ConfigError: there is none; the message lists the Javas that were found.
    """
    unfit: list[str] = []
    for java in _javas():
        home, fault = _inspect(java)
        if home:
            return home
        unfit.append(f"{java} {fault}")
    raise ConfigError(
        f"Java 17 or 21 is needed, {'; '.join(unfit) or 'no Java found'}",
        "Install one of them (openjdk-17-jre-headless, openjdk@17) or set JAVA_HOME",
    )


def class_archive(name: str) -> Path:
    """Return the path of an archive of classes in this Python environment; a JVM starts sooner with it."""
    return Path(sys.prefix) / "share" / "walship" / f"{name}.jsa"


@contextmanager
def new_class_archive(name: str) -> Iterator[Path]:
    """Give the path that a JVM is to write an archive to; on exit it is in place. OSError: it cannot be."""
    file = class_archive(name)
    file.parent.mkdir(parents=True, exist_ok=True)
    made = file.with_name(f"{file.name}.{os.getpid()}")
    try:
        yield made
        made.replace(file)
    finally:
        made.unlink(missing_ok=True)


def archive_options(name: str, archive_to: Path | None) -> list[str]:
    """Return a JVM's options to use an archive, which it ignores if its Java or jars are others, or to write one."""
    if archive_to is not None:
        return [f"-XX:ArchiveClassesAtExit={archive_to}", "-Xlog:disable"]
    archive = class_archive(name)
    return [f"-XX:SharedArchiveFile={archive}", "-Xlog:disable"] if archive.is_file() else []


def _javas() -> Iterator[Path]:
    seen = set[Path]()
    for java in _java_places():
        if java.resolve() not in seen:
            seen.add(java.resolve())
            yield java


def _java_places() -> Iterator[Path]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home) / "bin" / "java"
    if java := shutil.which("java"):
        yield Path(java)
    for pattern in (
        "/usr/lib/jvm/*/bin/java",
        "/Library/Java/JavaVirtualMachines/*/Contents/Home/bin/java",
        "/opt/homebrew/opt/openjdk@*/libexec/openjdk.jdk/Contents/Home/bin/java",
        "/usr/local/opt/openjdk@*/libexec/openjdk.jdk/Contents/Home/bin/java",
    ):
        yield from sorted(Path("/").glob(pattern[1:]))


def _inspect(java: Path) -> tuple[str, str]:
    """Run ``java``, which may be a script; return the home that it reports and "", or "" and the fault."""
    try:
        done = subprocess.run(
            [java, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=30,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", f"does not start ({getattr(error, 'strerror', None) or 'no answer within 30 s'})"
    if done.returncode:
        output = [*done.stderr.split("\n"), *done.stdout.split("\n")]
        line = next((line.strip() for line in output if line.strip()), f"exit code {done.returncode}")
        return "", f"does not start ({line})"
    version = re.search(r'version "(?:1\.)?(\d+)', done.stderr)
    if version is None:
        return "", "does not report its version"
    if int(version[1]) not in JAVA_VERSIONS:
        return "", f"is Java {version[1]}"
    told = re.search(r"^ *java\.home = (.+)", done.stderr, re.MULTILINE)
    home = Path(told[1].strip()) if told else java.resolve().parent.parent
    return ("", f"lacks {_MODULE}, which Spark asks for") if _is_cut_down(home) else (str(home), "")


def _is_cut_down(home: Path) -> bool:
    """Whether a Java says that it was made without what Spark's launcher asks for, as by jlink."""
    with suppress(OSError):
        modules = re.search(r'^MODULES="(.+)"', (home / "release").read_text(errors="replace"), re.MULTILINE)
        return modules is not None and _MODULE not in modules[1].split()
    return False


def _is_sound(path: Path, jar: Jar) -> bool:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == jar.sha256
    except OSError:
        return False


def _fetch(folder: Path, jars: list[Jar]) -> None:
    if importlib.util.find_spec("pyspark") is None:
        raise SparkMissingError("PySpark is not installed, so the jars it needs cannot be fetched", _WITH_SPARK)
    java_home = java_home_check()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as scratch:
            _resolve(Path(scratch), jars, java_home)
            for jar in jars:
                fetched = Path(scratch) / "jars" / f"{jar.group}_{jar.file_name}"
                if not _is_sound(fetched, jar):
                    raise ConfigError(
                        f"{jar.coordinates} was fetched, but its SHA-256 sum is not the pinned one",
                        "The jar was changed at or on the way from the repository: find the cause first",
                    )
                os.replace(fetched, folder / jar.file_name)  # atomically, also while others fetch
    except OSError as e:
        raise ConfigError(
            f"the jars cannot be stored in {folder}: {e.strerror}",
            "Free disk space there, or set WALSHIP_CACHE to another folder",
        ) from None


def _resolve(scratch: Path, jars: list[Jar], java_home: str) -> None:
    """Fetch the jars into ``scratch`` with Spark's resolver, which runs only when a session starts."""
    script = "from pyspark.sql import SparkSession; SparkSession.builder.getOrCreate().stop()"
    conf = {
        "spark.master": "local[1]",
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.jars.ivy": str(scratch),
        "spark.jars.packages": ",".join(jar.coordinates for jar in jars),
        "spark.jars.excludes": _OF_PYSPARK,
    }
    properties = scratch / "fetch.conf"
    properties.write_text("".join(f"{key} {value}\n" for key, value in conf.items()), encoding="utf-8")
    environ = {
        **os.environ,
        "JAVA_HOME": java_home,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_SUBMIT_ARGS": f'--properties-file "{properties}" pyspark-shell',
    }
    allow_any_path(environ)
    log = scratch / "fetch.log"
    with log.open("wb") as out:
        command = [sys.executable, "-P", "-c", script]
        try:
            code = subprocess.run(command, env=environ, stdout=out, stderr=out, timeout=FETCH_TIMEOUT_S).returncode
        except subprocess.TimeoutExpired:
            code = -1
    if code:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        words = ("access error", "Exception in thread", "rror")  # the network's reason first, PySpark's last
        why = next((line.strip() for word in words for line in lines if word in line), "no answer in time")
        raise ConfigError(
            f"Spark could not fetch {conf['spark.jars.packages']}: {why[:300]}",
            "Check the network or Spark's repository settings (spark.jars.ivySettings), or set [replay] jars",
        )
