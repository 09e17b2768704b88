"""The derive role: a thread for each derived table, so that what holds one holds no other; one host does it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from peer.derive import hooks
from peer.derive.role import DeriveRole
from replication.coordination.paths import Kind
from tests.deriving import DerivingSite
from tests.sites import rows, table, until


@pytest.fixture
def site(tmp_path: Path) -> Iterator[DerivingSite]:
    with ExitStack() as stack:
        yield DerivingSite(tmp_path, "east", stack)


@contextmanager
def running(site: DerivingSite) -> Iterator[DeriveRole]:
    """The role, beside what registers and replays; joined at the end."""
    stop = threading.Event()
    role = DeriveRole(site.config, site.ledger, site.coordination, stop, site.tables)

    def catch_up() -> None:
        while not stop.wait(0.05):
            site.catch_up()

    threads = [threading.Thread(target=role.run), threading.Thread(target=catch_up)]
    for thread in threads:
        thread.start()
    try:
        yield role
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_a_hook_that_hangs_or_fails_holds_its_own_table_only(
    site: DerivingSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs, may_go_on = threading.Event(), threading.Event()
    fails = [True]

    def hanging(options: object) -> hooks.Run:
        def run(given: pa.Table) -> pa.Table:
            if given.num_rows:
                hangs.set()
                assert may_go_on.wait(60)
            return given

        return run

    def failing(options: object) -> hooks.Run:
        def run(given: pa.Table) -> pa.Table:
            if given.num_rows and fails[0]:
                raise ValueError("not today")
            return given

        return run

    monkeypatch.setattr(hooks, "BUILT_IN", {**hooks.BUILT_IN, "hanging": hanging, "failing": failing})
    spec = table("ops.source")
    site.ledger.tables.create(spec)
    with running(site):
        made = {hook: site.define(f"ops.{hook}", "ops.source", hook) for hook in ("hanging", "failing", "select")}
        site.wal().append(spec, rows(0, 3))
        until(lambda: hangs.is_set(), 60)
        until(lambda: len(site.shown(made["select"])) == 3, 60, "the table whose hook works")
        until(lambda: "not today" in site.derivation(made["failing"]).error, 60, "what is wrong in the ledger")
        assert site.shown(made["hanging"]) == site.shown(made["failing"]) == []
        fails[0] = False
        may_go_on.set()
        for spec in made.values():
            until(lambda spec=spec: len(site.shown(spec)) == 3, 60, spec.name)
        until(lambda: not site.derivation(made["failing"]).error, 60)
    assert all(len(site.versions(spec)) == 3 for spec in made.values())


def test_only_the_first_host_derives(site: DerivingSite) -> None:
    spec = table("ops.source")
    site.ledger.tables.create(spec)
    first = site.coordination.enrol(Kind.WORKERS, "a0", {})
    public = site.define("ops.public", "ops.source", "select")
    site.wal().append(spec, rows(0, 3))
    with running(site) as role:
        until(lambda: site.ledger.replay.mark(spec.uuid), 60)
        until(lambda: role._leads is not None, 60)
        assert not role._leads and site.derivation(public).position < 0, "the host a0 would"
        first.leave()
        until(lambda: len(site.shown(public)) == 3, 60)
