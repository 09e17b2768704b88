"""``walship ops``: what is unfinished is shown, and finished, retried or given up by name."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest
from rich.console import Console

from peer.client.cluster import Cluster
from peer.status.operations import UnfinishedOperation, operations
from replication import config
from replication.commit.leases import Leases
from replication.commit.sequence import CommitSequence, SequenceBuilder
from replication.commit.step import CommitStep, step_type
from replication.core.ids import ClusterId
from replication.core.roles import Role, RoleState
from replication.ledger.base import Ledger
from replication.ledger.commit_steps import CommitStepStore, NewSequence, SequenceId, StoredSequence
from replication.ledger.sql.ledger import initialise, open_ledger
from shell.cli.render import Printer
from shell.commands import ops
from shell.main import run
from shell.status.page import show_operations


@step_type("test.touch")
@dataclass(frozen=True)
class Touch(CommitStep[Cluster]):
    name: str

    def verify(self, context: Cluster) -> bool:
        return (context.config.data_dir / self.name).exists()

    def execute(self, context: Cluster) -> None:
        (context.config.data_dir / self.name).touch(exist_ok=False)

    def describe(self) -> str:
        return f"make {self.name}"


@dataclass
class Site:
    file: Path
    ledger: Ledger
    capfd: pytest.CaptureFixture[str]

    @property
    def steps(self) -> CommitStepStore:
        return self.ledger.steps

    @property
    def folder(self) -> Path:
        return self.file.parent

    def sequence(self, *names: str) -> CommitSequence[Cluster]:
        return SequenceBuilder(self.steps, "east", "move").add(*map(Touch, names)).build()

    def ops(self, *words: str) -> tuple[int, str, str]:
        self.capfd.readouterr()
        code = run(["--cluster", str(self.file), "ops", *words])
        told = self.capfd.readouterr()
        return code, " ".join(told.out.split()), " ".join(told.err.split())


@pytest.fixture
def site(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Iterator[Site]:
    file = tmp_path / "walship.toml"
    file.write_text(config.default_toml("east"))
    url = config.load(file).ledger_url
    initialise(url, ClusterId("east", uuid4()))
    ledger = open_ledger(url)
    yield Site(file, ledger, capfd)
    ledger.close()


def test_nothing_is_unfinished_at_first(site: Site) -> None:
    code, out, _ = site.ops("list")
    assert code == 0 and "no operation is unfinished" in out
    code, _, err = site.ops("show", "move")
    assert code == 4 and "east has no unfinished operation move" in err


def test_an_interrupted_operation_is_shown_and_resumed_from_the_first_step_that_is_not_done(site: Site) -> None:
    (site.folder / "a").touch()
    site.steps.put_all([site.sequence("a", "b").stored_form()])
    code, out, _ = site.ops("list", "--json")
    (row,) = json.loads(out)
    assert code == 0 and (row["operation"], row["state"], row["done"]) == ("move", "waiting", "0 of 2")
    code, out, _ = site.ops("show", "move")
    assert "east/move is waiting" in out and "1 make a" in out and "2 make b" in out
    assert not (site.folder / "b").exists(), "showing changes nothing"
    code, out, _ = site.ops("resume", "move")
    assert code == 0 and "step 2 of 2: make b" in out and "make a" not in out and "move is done" in out
    assert (site.folder / "b").exists() and not site.steps.sequences()


def test_a_suspended_operation_is_refused_until_it_is_retried(site: Site) -> None:
    (site.folder / "b").symlink_to(site.folder / "away" / "b")  # cannot be made
    site.steps.put_all([site.sequence("a", "b").stored_form()])
    codes = [site.ops("resume", "move")[0] for _ in range(5)]
    assert codes == [11] * 5 and (site.folder / "a").exists()
    code, _, err = site.ops("resume", "move")
    assert code == 4 and "failed 5 times and is suspended" in err and "walship ops retry move" in err
    _, out, err = site.ops("show", "move")
    assert "east/move is suspended" in out and "1 done make a" in out and "failed 5 times, last" in err
    (site.folder / "b").unlink()
    code, out, _ = site.ops("retry", "move")
    assert code == 0 and "move is done" in out and (site.folder / "b").exists()


def test_another_programs_sequence_is_retried_by_that_program(site: Site) -> None:
    publish = SequenceId("publish", "MyTopic")
    site.steps.put_all([NewSequence(publish, ('{"kind":"theirs","version":1}',))])
    site.steps.lease([publish], "them", 100)
    site.steps.fail(publish, "them", 0, "full", 1)
    _, out, _ = site.ops("show", "MyTopic", "--store", "publish")
    assert "publish/MyTopic is suspended" in out and '{"kind":"theirs","version":1}' in out
    code, out, _ = site.ops("retry", "MyTopic", "--store", "publish")
    assert code == 0 and "the next run of publish goes on with it" in out
    assert not site.steps.sequences()[0].suspended


def test_an_operation_that_runs_is_neither_resumed_nor_abandoned(site: Site) -> None:
    with Leases(site.steps) as leases:
        leases.put([site.sequence("a").stored_form()])
        _, out, _ = site.ops("list")
        assert "move running 0 of 1 host" in out
        code, _, err = site.ops("resume", "move")
        assert code == 5 and "runs east/move" in err
        code, _, err = site.ops("abandon", "move", "--yes")
        assert code == 4 and "runs east/move. Stop that process first" in err.replace("hint ", ". ").replace(
            " . ", ". "
        )


def test_an_operation_that_another_process_begins_to_run_just_now_is_not_abandoned(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    moving, real = site.sequence("a").stored_form(), ops._now
    site.steps.put_all([moving])

    def just_before(stored: StoredSequence) -> UnfinishedOperation:
        found = real(stored)
        site.steps.lease([moving.id], "another", 100)
        return found

    monkeypatch.setattr(ops, "_now", just_before)
    code, _, err = site.ops("abandon", "move", "--yes")
    assert code == 4 and "another process has just begun to run east/move" in err and site.steps.sequences()


def test_an_operation_is_abandoned_once_it_is_confirmed(site: Site) -> None:
    site.steps.put_all([site.sequence("a").stored_form()])
    code, _, err = site.ops("abandon", "move")
    assert code == 4 and "would stay half done: at least 0 of 1 steps are done" in err and site.steps.sequences()
    code, out, _ = site.ops("abandon", "move", "--yes")
    assert code == 0 and "east/move is abandoned" in out and not site.steps.sequences()


def test_a_role_change_names_the_very_verb_that_goes_on_with_it(site: Site) -> None:
    role = SequenceId("east", "role")
    switchover = '{"kind":"switchover.promote","version":1,"peer":"west","epoch":2,"at":1}'
    failover = f'{{"kind":"failover.fence","version":1,"origin":"west:{uuid4()}","epoch":2,"upto":0}}'
    for step, verb, other in (
        (switchover, "walship switchover west; to undo it: walship switchover --cancel", "west"),
        (failover, "walship failover east --from west", "west"),
        ('{"kind":"theirs","version":1}', "walship switchover or failover, as before", "the other cluster"),
    ):
        site.steps.put_all([NewSequence(role, (step,))])
        assert f"Run it again on that host: {verb}" in site.ops("resume", "role")[2]
        assert f"it goes on when it is run again: {verb}" in site.ops("retry", "role")[1]
        assert f"To finish it: {verb}; to leave it so: --yes" in site.ops("abandon", "role")[2]
        code, out, err = site.ops("abandon", "role", "--yes")
        assert code == 0 and "east/role is abandoned" in out and f"if {other} is, too" in err
    site.ledger.terms.keep_role(RoleState(Role.STANDBY, 2))
    site.steps.put_all([NewSequence(role, (switchover,))])
    told = site.ops("abandon", "role", "--yes")[2]
    assert "no cluster takes writes: walship readonly off. If west is lost: walship failover east --from west" in told


def test_status_names_operations_that_nobody_runs(site: Site) -> None:
    site.steps.put_all([site.sequence("a").stored_form()])
    moved = SequenceId("publish", "MyTopic")
    site.steps.put_all([NewSequence(moved, ("{}",))])
    site.steps.lease([moved], "them", 100)
    site.steps.fail(moved, "them", 0, "step 1 of 1: disk full", 1)
    site.steps.put_all([NewSequence(SequenceId("east", "role"), ("{}",))])
    err = io.StringIO()
    site.steps.put_all([NewSequence(SequenceId("publish", "Other"), ("{}",))])
    show_operations(Printer(False, err=Console(file=err, width=500)), operations(site.steps), "east")
    assert "east/role is unfinished and nobody runs it. Run it again: walship switchover or failover" in err.getvalue()
    assert "east/move is unfinished and nobody runs it" in err.getvalue() and "walship ops resume" in err.getvalue()
    assert "publish/MyTopic failed 1 time and is suspended: step 1 of 1: disk full" in err.getvalue()
    retry = "walship ops show MyTopic --store publish, then walship ops retry MyTopic --store publish"
    assert retry in err.getvalue(), "without the store it finds nothing"
    later = "See walship ops show Other --store publish. The next run of publish takes it up"
    assert later in err.getvalue(), "walship ops resume takes the cluster's own only"
