"""Opening a ledger; its parts are made when they are first used, and then once."""

from __future__ import annotations

import contextlib
import functools
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy.engine import make_url
from sqlalchemy.sql.compiler import SQLCompiler

from replication import config as configuration
from replication.core.ids import ClusterId
from replication.errors import ConfigError, CoordinationError, VersionError
from replication.ledger.base import Ledger
from replication.ledger.sql import ledger
from replication.ledger.sql.store.store import SqlStore
from replication.log import redact

THREADS = 4


def without_lock(self: Any, instance: Any, owner: object = None) -> Any:
    """As ``cached_property`` is since Python 3.12."""
    if self.attrname not in vars(instance):
        vars(instance)[self.attrname] = self.func(instance)
    return vars(instance)[self.attrname]


def test_threads_that_ask_first_get_the_same_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functools.cached_property, "__get__", without_lock)
    together, two_are_in = threading.Barrier(THREADS), threading.Barrier(2)
    made: list[object] = []

    class Parts:
        @ledger._Once
        def part(self) -> object:
            with contextlib.suppress(threading.BrokenBarrierError):
                two_are_in.wait(0.2)  # for a second thread, if one can come in
            made.append(object())
            return made[-1]

    parts = Parts()

    def ask(_: int) -> object:
        together.wait(20)
        return parts.part

    with ThreadPoolExecutor(THREADS) as threads:
        assert len(set(threads.map(ask, range(THREADS)))) == 1
    assert len(made) == 1


def test_a_ledger_that_was_used_before_forks_opens_with_its_statements_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, cluster, compiled = str(tmp_path / "ledger.db"), ClusterId("east", uuid4()), []
    ledger.initialise(url, cluster)
    made = SQLCompiler.__init__
    monkeypatch.setattr(SQLCompiler, "__init__", lambda *a, **k: (compiled.append(1), made(*a, **k))[1])

    def use(opened: Ledger) -> None:
        assert opened.cluster == cluster and not opened.rules.peers()

    ledger.use_before_forks(url, 1.0, use)
    assert compiled
    compiled.clear()
    with closing(ledger.open_ledger(url, 1.0)) as opened:
        use(opened)
        assert not compiled
        with closing(ledger.open_ledger(url, 1.0)) as another:
            use(another)
            assert compiled, "two that are open share nothing"


def test_a_ledger_that_others_can_read_by_now_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    ledger.initialise(str(path), ClusterId("east", uuid4()))
    ledger.use_before_forks(str(path), 1.0, lambda opened: opened.terms.role())
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="ledger.db"):
        ledger.open_ledger(str(path), 1.0)


def test_a_ledger_in_a_folder_that_cannot_be_written_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    ledger.initialise(url, ClusterId("east", uuid4()))
    (tmp_path / "ledger.db-wal").mkdir()  # SQLite can make no file there, as on a read-only disk
    with pytest.raises(CoordinationError, match="unable to open database file.*Check its disk"):
        ledger.open_ledger(url)
    monkeypatch.setattr("os.access", lambda path, mode: path != tmp_path)
    with pytest.raises(CoordinationError, match=f"Make {tmp_path} writable"):
        ledger.open_ledger(url)


@pytest.mark.parametrize(
    "url", ["postgresql+psycopg-binary://u:geheim@h/db", "postgresql://127.0.0.1:1/db?user=u&password=geheim"]
)
def test_what_is_wrong_with_a_ledgers_address_is_told_without_its_password(url: str) -> None:
    with pytest.raises((ConfigError, CoordinationError), match=r"postgresql\+psycopg") as refused:
        ledger.open_ledger(url)
    assert "geheim" not in str(refused.value)


def test_a_password_with_an_at_sign_that_is_not_quoted_is_not_told_as_the_host() -> None:
    with pytest.raises(ConfigError, match="has an @ or a blank in user or password") as refused:
        ledger.open_ledger("postgresql://walship:first@geheim@127.0.0.1:1/db")
    assert "geheim" not in str(refused.value) and "%40" in refused.value.hint


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:open geheim@h/db",
        "postgresql://a user:geheim@h/db",
        "postgresql://h/db?user=u&password=open geheim",
    ],
)
def test_an_address_of_which_a_part_of_the_password_would_be_shown_is_refused(url: str) -> None:
    assert "geheim" in redact(url), "it would be in ZooKeeper, for anyone to read"
    with pytest.raises(ConfigError, match="an @ or a blank") as refused:
        ledger.open_ledger(url)
    assert "geheim" not in str(refused.value) and "%20" in refused.value.hint


def test_an_address_may_have_a_blank_elsewhere_than_in_its_password() -> None:
    """As the page on clusters of several hosts has it."""
    SqlStore("postgresql://u:ge%20heim@h/db?options=-c idle_in_transaction_session_timeout=9s").close()


@pytest.mark.parametrize("url", ["postgresql://h:port/db", "postgresql://[::1/db"])
def test_a_ledgers_address_that_is_no_url_is_a_mistake_in_the_configuration(url: str) -> None:
    with pytest.raises(ConfigError, match="is not a ledger address"):
        ledger.open_ledger(url)
    if "[" in url:
        with pytest.raises(ConfigError, match=r"ledger.url: not the URL of a database: Invalid IPv6 URL"):
            configuration.load(None, {"cluster": {"name": "east"}, "ledger": {"url": url}}, {})


def test_a_command_on_a_lost_ledger_names_what_makes_it_anew(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as missing:
        ledger.open_ledger(f"sqlite:///{tmp_path}/ledger.db")
    assert "walship up" in missing.value.hint and "If it was lost: walship rebuildledger" in missing.value.hint


def test_a_ledger_in_a_file_needs_no_driver_that_is_not_installed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no ledger at"):
        ledger.open_ledger(f"sqlite+aiosqlite:///{tmp_path}/ledger.db")


def test_an_option_that_the_database_does_not_know_is_named_as_a_failure_of_the_ledger() -> None:
    with pytest.raises(CoordinationError, match='the ledger at .* failed: invalid connection option "colour"'):
        ledger.open_ledger("postgresql://127.0.0.1:1/db?colour=red")


@pytest.mark.parametrize("url", ["sqlite:////east/ledger.db", "postgresql://walship@db/east"])
def test_a_ledger_of_before_the_first_release_is_to_be_rebuilt_only_where_that_is_possible(url: str) -> None:
    store: Any = SimpleNamespace(url=make_url(url), is_sqlite=url.startswith("sqlite"))
    with pytest.raises(VersionError, match="schema version 0, of before the first release") as refused:
        ledger._check({"schema": "0"}, None, store)
    assert ("rebuildledger" in refused.value.hint) is store.is_sqlite  # it refuses where hosts share the ledger
