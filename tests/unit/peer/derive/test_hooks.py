"""Hooks are found by entry point, and the error of a broken one has a remedy."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

import pyarrow as pa
import pytest

from peer.derive.hooks import load
from replication.errors import HookError, RequestError

ROWS = pa.table({"id": [1, 2], "age": [34, 57]})
Install = Callable[[str, str, str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Install a package of one module with one hook, as pip would."""

    def act(package: str, hook: str, code: str) -> None:
        folder = tmp_path / package
        (folder / f"{package}-1.0.dist-info").mkdir(parents=True)
        (folder / f"{package}.py").write_text(code)
        info = folder / f"{package}-1.0.dist-info"
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[walship.hooks]\n{hook} = {package}:{hook}\n")
        monkeypatch.syspath_prepend(str(folder))
        importlib.invalidate_caches()
        monkeypatch.delitem(sys.modules, package, raising=False)

    return act


def test_an_installed_hook_is_found_with_its_options_and_version(install: Install) -> None:
    code = (
        "def rounded(options):\n"
        "    step = int(options['step'])\n"
        "    def run(rows):\n"
        "        made = [age // step * step for age in rows.column('age').to_pylist()]\n"
        "        return rows.set_column(1, 'age', [made])\n"
        "    return run\n"
        "rounded.version = '7'\n"
    )
    install("ourhooks", "rounded", code)
    with pytest.raises(RequestError, match="There are rounded, select"):
        load("nobody", {})
    hook = load("rounded", {"step": "10"})
    assert hook.version == "7"
    assert hook(ROWS).column("age").to_pylist() == [30, 50]
    with pytest.raises(RequestError, match="does not take these options: KeyError: 'step'"):
        load("rounded", {})


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("import nothing_such", "hook bad cannot be imported: ModuleNotFoundError"),
        ("import sys; sys.exit(3)", "hook bad cannot be imported: SystemExit: 3"),
        ("def bad(options): raise SystemExit(3)", "hook bad does not take these options: SystemExit: 3"),
        ("raise KeyboardInterrupt", "hook bad cannot be imported: KeyboardInterrupt"),
        ("raise BaseException('a panic')", "hook bad cannot be imported: BaseException: a panic"),
        ("def bad(options): raise BaseException('a panic')", "does not take these options: BaseException: a panic"),
        ("def bad(options): raise KeyboardInterrupt", "does not take these options: KeyboardInterrupt"),
        ("bad = 5", r"hook bad \(broken:bad\) cannot be called"),
    ],
)
def test_a_broken_package_is_an_error(install: Install, code: str, says: str) -> None:
    install("broken", "bad", code)
    with ThreadPoolExecutor() as threads, pytest.raises(RequestError, match=says):
        threads.submit(load, "bad", {}).result()


def test_an_interrupt_counts_as_one_in_the_main_thread_alone(install: Install) -> None:
    code = "def stop(options):\n    def run(rows):\n        raise KeyboardInterrupt\n    return run\n"
    install("interrupting", "stop", code)
    hook = load("stop", {})
    with pytest.raises(KeyboardInterrupt):
        hook(ROWS)
    with ThreadPoolExecutor() as threads, pytest.raises(HookError, match="hook stop failed: KeyboardInterrupt"):
        threads.submit(hook, ROWS).result()


def test_a_hook_that_would_end_its_thread_fails_as_others_do(install: Install) -> None:
    install("leaving", "leave", "import sys\ndef leave(options):\n    return lambda rows: sys.exit(3)\n")
    with pytest.raises(HookError, match="hook leave failed: SystemExit: 3"):
        load("leave", {})(ROWS)


def test_a_hook_that_panics_in_rust_fails_as_others_do(install: Install) -> None:
    code = "class PanicException(BaseException):\n    pass\ndef panic(options):\n    def run(rows):\n"
    install("panicking", "panic", code + "        raise PanicException('out of range')\n    return run\n")
    with pytest.raises(HookError, match="hook panic failed: PanicException: out of range"):
        load("panic", {})(ROWS)


def test_two_packages_with_one_hook_name_are_an_error(install: Install) -> None:
    for package in ("one", "two"):
        install(package, "same", "def same(options):\n    return lambda rows: rows\n")
    with pytest.raises(RequestError, match="several packages have a hook 'same': .*one:same"):
        load("same", {})


def test_select_keeps_types_and_drops_rows_for_which_the_condition_is_not_true() -> None:
    given = pa.table(
        {"id": pa.array([1, 2, 3], pa.int64()), "seen": pa.array([1, None, 3], pa.timestamp("us", "UTC"))},
        schema=pa.schema([pa.field("id", pa.int64(), nullable=False), ("seen", pa.timestamp("us", "UTC"))]),
    )
    made = load("select", {"where": "seen > '1970-01-01 00:00:00.000001Z'", "columns": "seen"})(given)
    assert made.to_pylist() == given.slice(2).to_pylist()
    assert made.schema.types == given.schema.types
    hashed = load("select", {"hash": "seen", "salt": "s"})(given)
    assert hashed.column("seen").null_count == 1 and len(hashed.column("seen")[0].as_py()) == 64
    with pytest.raises(HookError, match="there is no column x"):
        load("select", {"null": "x"})(given)
    with pytest.raises(HookError, match="x.* not found") as refused:
        load("select", {"where": "x > 1"})(given)
    assert "id, seen" in refused.value.hint


def test_a_salt_may_hold_any_character() -> None:
    given, salt = pa.table({"who": ["ann"]}), "it's \\ secret"
    made = load("select", {"hash": "who", "salt": salt})(given)
    assert made.column("who").to_pylist() == [sha256(f"{salt}ann".encode()).hexdigest()]


@pytest.mark.parametrize(
    ("where", "name"),
    [
        ('"random"() > 0.5', "random"),
        ("random/* */() > 0.5", "random"),
        ("born > ago(interval 1 day)", "ago"),
        ("age(born) < interval 1 day", "age of one time"),
    ],
)
def test_a_condition_that_depends_on_the_time_or_on_chance_is_refused_however_it_is_written(
    where: str, name: str
) -> None:
    with pytest.raises(RequestError, match=f"{name} is not the same every time"):
        load("select", {"where": where})


@pytest.mark.parametrize(
    "where",
    [
        "n = (select max(n) from given)",
        "id in (select id from '/tmp/ids.csv')",
        "id in (from READ_CSV('/tmp/ids.csv'))",
    ],
)
def test_a_condition_that_depends_on_other_rows_or_on_a_file_is_refused(where: str) -> None:
    with pytest.raises(RequestError, match="a table or file in a subquery is not the same every time"):
        load("select", {"where": where})


@pytest.mark.parametrize(
    "where",
    [
        "id in (select unnest([1, 2]))",
        "age(born, died) < interval 9 year",
        "id in (from range(3))",
        "note <> 'random()'",
    ],
)
def test_a_condition_that_depends_on_the_row_alone_is_taken(where: str) -> None:
    assert load("select", {"where": where}).name == "select"
