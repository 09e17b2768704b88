"""The derive role: a thread for each derived table, on one host of the cluster."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from rich.console import Console

from peer.client.cluster import Cluster
from peer.derive import hooks
from peer.derive.deriver import Deriver
from peer.derive.role import DeriveRole
from peer.status.collect import collect
from peer.status.members import members_of
from replication.coordination.host import host_record
from replication.coordination.paths import Election, MemberKind
from replication.ledger.base import Derivation
from replication.writer.wal.registration import LeaseTerms
from shell.cli.render import Printer
from shell.processes.up import _later, chosen_roles
from shell.status.page import show_status
from tests.deriving import DerivingSite
from tests.sites import rows, table
from tests.waiting import wait_until

pytestmark = pytest.mark.heavy


@pytest.fixture
def site(tmp_path: Path) -> Iterator[DerivingSite]:
    with ExitStack() as stack:
        yield DerivingSite(tmp_path, "east", stack)


@contextmanager
def running(site: DerivingSite) -> Iterator[DeriveRole]:
    """The role, beside what registers and replays; joined at the end."""
    stop = threading.Event()
    cluster = Cluster(site.config, site.ledger)
    role = DeriveRole(
        site.config,
        site.ledger,
        site.coordination,
        stop,
        site.tables,
        lambda position, seconds: cluster.wait(position, timeout_s=seconds),
        lambda: LeaseTerms(site.config.writer.lease_s),
    )

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


def test_a_hook_that_hangs_or_fails_stops_its_own_table_only(
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
        wait_until(lambda: hangs.is_set(), timeout_s=60)
        wait_until(lambda: len(site.shown(made["select"])) == 3, timeout_s=60, what="the table whose hook works")
        wait_until(
            lambda: "not today" in site.derivation(made["failing"]).error,
            timeout_s=60,
            what="what is wrong in the ledger",
        )
        assert site.shown(made["hanging"]) == site.shown(made["failing"]) == []
        fails[0] = False
        may_go_on.set()
        for spec in made.values():
            wait_until(lambda spec=spec: len(site.shown(spec)) == 3, timeout_s=60, what=spec.name)
        wait_until(lambda: not site.derivation(made["failing"]).error, timeout_s=60)
    assert all(len(site.versions(spec)) == 3 for spec in made.values())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_table_whose_thread_ended_goes_on(site: DerivingSite, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[Derivation] = []
    step = Deriver.step

    def exits_once(deriver: Deriver, derivation: Derivation) -> bool:
        if not ended:
            ended.append(derivation)
            raise SystemExit
        return step(deriver, derivation)

    monkeypatch.setattr(Deriver, "step", exits_once)
    spec = table("ops.source")
    site.ledger.tables.create(spec)
    with running(site):
        made = site.define("ops.made", "ops.source", "select")
        site.wal().append(spec, rows(0, 3))
        wait_until(lambda: len(site.shown(made)) == 3, timeout_s=60, what="the derived rows")
    assert ended


def test_the_thread_of_a_dropped_table_ends(site: DerivingSite) -> None:
    def threads() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name.startswith("derive ")]

    site.ledger.tables.create(table("ops.source"))
    with running(site):
        made = [site.define(f"ops.made{number}", "ops.source", "select") for number in range(2)]
        wait_until(lambda: len(threads()) == 2, timeout_s=60)
        site.ledger.tables.drop(made[0].uuid)
        wait_until(lambda: threads() == [f"derive {made[1].uuid}"], timeout_s=30, what="the end of the thread")


def test_the_elected_host_derives(site: DerivingSite) -> None:
    spec = table("ops.source")
    site.ledger.tables.create(spec)
    site.coordination.enrol(MemberKind.WORKERS, "a0", {})  # first by name, and without a derive role
    site.coordination.put_host(host_record(site.config))
    other = site.ensemble.connect(site.config.zookeeper_root)
    assert other.campaign("z9", Election.DERIVERS).leads()
    public = site.define("ops.public", "ops.source", "select")
    site.wal().append(spec, rows(0, 3))
    with running(site):
        wait_until(lambda: site.ledger.replay.checkpoint(spec.uuid), timeout_s=60)
        wait_until(lambda: site.coordination.candidates(Election.DERIVERS) == ("z9", "h0"), timeout_s=60)
        assert site.derivation(public).position < 0, "the host z9 would"
        other.close()
        wait_until(lambda: len(site.shown(public)) == 3, timeout_s=60)
        assert members_of(site.coordination).hosts[0].roles == ("derive (leads)", "worker")
    assert site.coordination.leader(Election.DERIVERS) is None


def test_a_host_without_a_worker_leaves_deriving_to_the_next(site: DerivingSite) -> None:
    with running(site):
        wait_until(lambda: site.coordination.leader(Election.DERIVERS) == "h0", timeout_s=60)
        site.membership.leave()
        wait_until(lambda: site.coordination.leader(Election.DERIVERS) is None, timeout_s=60)


def test_status_says_when_no_host_derives(site: DerivingSite) -> None:
    site.ledger.tables.create(table("ops.source"))

    def noted() -> str:
        printer = Printer(False, Console(file=io.StringIO()), Console(file=io.StringIO(), width=200))
        show_status(printer, collect(site.config, site.ledger, members_of(site.coordination)))
        assert isinstance(printer.err.file, io.StringIO)
        return printer.err.file.getvalue()

    assert "derives" not in noted(), "there is nothing to derive"
    site.define("ops.public", "ops.source", "select")
    assert "no host derives tables" in noted()
    site.coordination.put_host(host_record(site.config))
    assert site.coordination.campaign("h0", Election.DERIVERS).leads()
    assert "derives" not in noted()


@pytest.mark.parametrize(
    ("named", "starts"),
    [("", True), ("worker,replay", True), ("worker,receiver,master", False), ("worker,replay,derive", False)],
)
def test_up_starts_the_role_where_replay_runs(site: DerivingSite, named: str, starts: bool) -> None:
    roles = chosen_roles(site.config, named)
    with _later(site.config, roles) as later:
        assert ("derive" in later) == starts
        assert not any(wanted() for wanted in later.values())
        site.ledger.tables.create(table("ops.source"))
        site.define("ops.public", "ops.source", "select")
        assert [role for role, wanted in later.items() if wanted()] == (["derive"] if starts else [])


def test_a_host_that_lost_the_election_releases_the_batch_ids_it_began(site: DerivingSite) -> None:
    spec = table("ops.source")
    site.ledger.tables.create(spec)
    public = site.define("ops.public", "ops.source", "select")
    site.wal().append(spec, rows(0, 3))
    with running(site):
        wait_until(lambda: len(site.shown(public)) == 3, timeout_s=60)
        (writer,) = (known.writer for known in site.ledger.time.writers())
        assert site.ledger.batches.hold(public.uuid, "next", writer, "h0") == writer
        site.membership.leave()
        wait_until(lambda: not site.ledger.time.writers(), timeout_s=20)
        site.ledger.time.register_writer("leader", "a0", 1, "boot", 1)
        wait_until(lambda: site.ledger.batches.hold(public.uuid, "next", "leader", "a0") == "leader", timeout_s=20)


def test_a_role_that_fails_ends_its_threads_too(monkeypatch: pytest.MonkeyPatch) -> None:
    stepped, ended = threading.Event(), threading.Event()
    derived = SimpleNamespace(table=uuid4(), error="")

    def members(kind: MemberKind) -> list[Any]:
        if stepped.is_set():
            raise RuntimeError("nobody foresaw this")
        return [SimpleNamespace(name="h0")]

    candidacy = SimpleNamespace(leads=lambda: True, withdraw=lambda: None)
    coordination: Any = SimpleNamespace(campaign=lambda *_: candidacy, members=members)
    ledger: Any = SimpleNamespace(derivations=SimpleNamespace(all=lambda: [derived]))
    monkeypatch.setattr(Deriver, "step", lambda *_: stepped.set())
    config: Any = SimpleNamespace(cluster=SimpleNamespace(host="h0"))
    nothing: Any = None
    role = DeriveRole(config, ledger, coordination, threading.Event(), nothing, nothing, nothing)

    def run() -> None:
        with pytest.raises(RuntimeError, match="nobody foresaw this"):
            role.run()
        ended.set()

    threading.Thread(target=run, daemon=True).start()
    assert ended.wait(20)
