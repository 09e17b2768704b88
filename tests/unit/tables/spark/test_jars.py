"""Java and jars: what is found, what is refused, and that nothing is fetched when it need not be."""

from __future__ import annotations

import hashlib
import os
import pwd
import re
import subprocess
import sys
from pathlib import Path
from typing import BinaryIO

import pytest

from replication.errors import ConfigError, SparkMissingError
from replication.tables.spark import jars


def fake_java(home: Path, script: str) -> Path:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\n{script}\n")
    java.chmod(0o755)
    return home


def says_version(version: str, home: str = "") -> str:
    told = f"echo '    java.home = {home}' >&2; " if home else ""
    return f"""{told}echo 'openjdk version "{version}" 2025-04-15' >&2"""


@pytest.fixture
def only_java_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine's other Javas out of sight."""
    places = jars._java_places
    monkeypatch.setattr("shutil.which", lambda _: None)
    monkeypatch.setattr(jars, "_java_places", lambda: (at for at in places() if at.parents[1] == java_home()))


def java_home() -> Path:
    return Path(os.environ["JAVA_HOME"])


@pytest.mark.parametrize("version", ["17.0.15", "21.0.2", "21"])
def test_java_home_wins_when_it_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "java", says_version(version))))
    assert jars.java_home_check() == str(tmp_path / "java")


@pytest.mark.usefixtures("only_java_home")
@pytest.mark.parametrize(
    ("script", "named"),
    [
        (says_version("25.0.1"), "is Java 25$"),
        (says_version("1.8.0_402"), "is Java 8$"),
        (says_version("11.0.1"), "is Java 11$"),
        ("echo >&2; echo 'Error: no memory' >&2; echo more >&2; exit 1", r"does not start \(Error: no memory\)$"),
        ("echo 'Unrecognized option'; exit 1", r"does not start \(Unrecognized option\)$"),
        ("exit 3", r"does not start \(exit code 3\)$"),
        ("exit 0", "does not report its version$"),
    ],
)
def test_a_java_that_will_not_do_is_named_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, named: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "java", script)))
    with pytest.raises(ConfigError) as caught:
        jars.java_home_check()
    assert re.search(f"^Java 17 or 21 is needed, {tmp_path}/java/bin/java {named}", caught.value.what)
    assert "JAVA_HOME" in caught.value.hint and "ZooKeeper" not in caught.value.hint


@pytest.mark.usefixtures("only_java_home")
def test_a_java_home_without_java_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match=r"none/bin/java does not start \(No such file or directory\)"):
        jars.java_home_check()


def test_no_java_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jars, "_java_places", lambda: iter(()))
    with pytest.raises(ConfigError, match="no Java found"):
        jars.java_home_check()


def test_a_java_that_is_a_script_says_where_java_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "shims", says_version("17.0.1", home="/opt/some java"))))
    assert jars.java_home_check() == "/opt/some java"


@pytest.mark.usefixtures("only_java_home")
def test_a_java_without_a_module_of_spark_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "cut", says_version("21.0.8"))))
    (tmp_path / "cut" / "release").write_text('MODULES="java.base jdk.unsupported"\n')
    with pytest.raises(ConfigError, match=r"cut/bin/java lacks jdk\.incubator\.vector, which Spark asks for"):
        jars.java_home_check()
    (tmp_path / "cut" / "release").write_text('MODULES="java.base jdk.incubator.vector"\n')
    assert jars.java_home_check() == str(tmp_path / "cut")


def test_one_that_will_not_do_is_passed_over_for_one_that_will(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", says_version("11.0.1"))))
    monkeypatch.setenv("PATH", str(fake_java(tmp_path / "new", says_version("21.0.1")) / "bin"), prepend=os.pathsep)
    assert jars.java_home_check() == str(tmp_path / "new")


def test_jars_of_the_configuration_are_taken_if_their_sums_are_known(tmp_path: Path) -> None:
    mine = tmp_path / "mine.jar"
    with pytest.raises(ConfigError, match=r"no jar .*mine\.jar"):
        jars.checked_jars([mine], [])
    mine.write_bytes(b"a jar")
    with pytest.raises(ConfigError, match="is not loaded") as caught:
        jars.checked_jars([mine], ["ab" * 32])
    found = hashlib.sha256(b"a jar").hexdigest()
    assert found in caught.value.hint
    assert jars.ensure_jars(jars.checked_jars([mine], [found.upper()])) == [mine]
    mine.write_bytes(b"another jar")
    with pytest.raises(ConfigError, match="is not loaded"):
        jars.checked_jars([mine], [found])


def test_cached_jars_are_used_without_spark_or_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = b"a jar"
    jar = jars.Jar("org.example", "thing", "1.0", hashlib.sha256(body).hexdigest())
    monkeypatch.setattr(jars, "pinned_jars", lambda also="": [jar])
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    monkeypatch.setenv("WALSHIP_CACHE", str(tmp_path))
    with pytest.raises(SparkMissingError):
        jars.ensure_jars()
    path = tmp_path / "jars" / "thing-1.0.jar"
    path.parent.mkdir()
    path.write_bytes(b"tampered")
    with pytest.raises(SparkMissingError):
        jars.ensure_jars()
    path.write_bytes(body)
    assert jars.ensure_jars() == [path]


def test_a_user_without_a_home_can_name_the_folder_of_jars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "XDG_CACHE_HOME", "WALSHIP_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", lambda number: {}[number])
    with pytest.raises(ConfigError, match="no home") as caught:
        jars.cache_dir()
    assert "WALSHIP_CACHE" in caught.value.hint
    monkeypatch.setenv("WALSHIP_CACHE", str(tmp_path))
    assert jars.cache_dir() == tmp_path / "jars"


def test_the_pinned_jars_fit_the_pinned_spark() -> None:
    named = {jar.artifact: jar for jar in jars.pinned_jars()}
    assert all(len(jar.sha256) == 64 for jar in named.values())
    pyspark = pytest.importorskip("pyspark", reason="PySpark is not installed")
    assert f"iceberg-spark-runtime-{pyspark.__version__.rpartition('.')[0]}_2.13" in named


def test_set_up_can_look_for_java_with_nothing_installed() -> None:
    code = "import sys; sys.path.insert(0, '.'); import replication.tables.spark.jars"
    root = Path(__file__).parents[4]
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_postgresqls_driver_is_pinned_apart_and_fetched_only_where_it_is_needed() -> None:
    base, more = jars.pinned_jars(), jars.pinned_jars(jars.POSTGRESQL)
    assert more[: len(base)] == base
    assert [(jar.artifact, len(jar.sha256)) for jar in more[len(base) :]] == [("postgresql", 64)]


def test_jars_are_fetched_under_the_c_locale_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, str] = {}

    def run(*_: object, env: dict[str, str], **__: object) -> subprocess.CompletedProcess[bytes]:
        seen.update(env)
        return subprocess.CompletedProcess([], 0)

    monkeypatch.setenv("LC_ALL", "C")
    monkeypatch.setattr(subprocess, "run", run)
    jars._resolve(tmp_path, jars.pinned_jars(), "/java")
    assert seen["LC_ALL"] == "C.UTF-8", "else Java does not find PySpark in a folder of another alphabet"


def test_a_locale_that_is_not_installed_is_no_other_for_java_than_for_python() -> None:
    code = (
        "import os; from replication.tables.spark.jars import allow_any_path;"
        " allow_any_path(os.environ); print(os.environ['LC_ALL'])"
    )
    given = {**os.environ, "LC_ALL": "xx_YY.UTF-8"}
    done = subprocess.run([sys.executable, "-c", code], env=given, capture_output=True, text=True, timeout=60)
    assert done.stdout == "C.UTF-8\n", done.stderr


def test_jars_that_cannot_be_fetched_say_what_the_network_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = (
        b"\t\t:: org.xerial#sqlite-jdbc;3.50.3.0: not found\n"
        b"\tServer access error at url https://maven/sqlite-jdbc.pom (java.net.ConnectException: Connection refused)\n"
        b'Exception in thread "main" java.lang.RuntimeException: [unresolved dependency]\n'
        b"PySparkRuntimeError: [JAVA_GATEWAY_EXITED] Java gateway process exited before sending its port number.\n"
    )

    def run(*_: object, stdout: BinaryIO, **__: object) -> subprocess.CompletedProcess[bytes]:
        stdout.write(said)
        return subprocess.CompletedProcess([], 1)

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(ConfigError, match="could not fetch .*: Server access error .*Connection refused"):
        jars._resolve(tmp_path, jars.pinned_jars(), "/java")
