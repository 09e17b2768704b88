"""Runs a drill: what would be lost, what has landed into the tables, a fork, its probes, a report, and no fork.

RPO is how old the fork's instant was when it was forked; it is not known if commit times are ahead of the clock here.
RTO is how long three things took: to plan the failover, to apply what had landed, and to read from every table of the
fork. The role itself is not changed.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

from peer.client.cluster import Cluster
from peer.drill.fork import FORK_FILE, Fork
from peer.drill.forking import make_fork, remove_fork
from peer.drill.measure import LagSampler, applied_within
from peer.drill.page import save_report
from peer.drill.probes import check_probe, run_probe
from peer.drill.report import DrillPhase, DrillReport
from peer.drill.session import OpenFork
from peer.failover.failover import answer, plan_failover
from peer.failover.role_change import RoleChange
from peer.failover.switchover import SwitchoverPlan
from replication import __version__, log
from replication.core.roles import Role
from replication.error_text import one_line, storable
from replication.errors import ReplicationError, RequestError
from replication.files.owner import owner_name
from replication.ledger.base import Drill
from replication.tables.catalog.catalog import IcebergCatalog, configured_catalog
from replication.wall_clock import now_us

_log = log.get(__name__)
_SOURCE = str(Path(__file__).resolve().parents[2])


@dataclass(frozen=True, slots=True)
class DrillRequest:
    """What a drill is to do.

    Args:
        probes: SQL files and scripts, in order.
        rehearse: plans the switchover at the ACTIVE cluster; None leaves it out.
        target: of the cluster, for scripts: its TOML file, or its address.
        probe_timeout_s: in place of the setting; None for that.
        is_scheduled: whether a schedule began it.
        report: gets a line for each phase.
    """

    probes: Sequence[Path] = ()
    rehearse: Callable[[], SwitchoverPlan] | None = None
    target: str = ""
    probe_timeout_s: float | None = None
    is_scheduled: bool = False
    report: Callable[[str], None] = lambda _: None


class RunningDrill:
    """One drill of a cluster, from its record in the ledger to its end. ``run`` is called once."""

    def __init__(self, cluster: Cluster, request: DrillRequest) -> None:
        self._cluster = cluster
        self._request = request
        self._settings = cluster.config.drills
        self._began_s = time.monotonic()
        now = now_us()
        id = f"{datetime.now(UTC):%Y%m%dt%H%M%S}_{uuid4().hex[:4]}"
        until = now + int(self._settings.timeout_s * 1e6)
        host = cluster.config.cluster.host
        self.drill = Drill(id, host, owner_name(), now, until, scheduled=request.is_scheduled)
        self.report = DrillReport(self.drill, cluster.name, __version__)

    def run(self) -> DrillReport:
        """Run it to its end, whatever happens in it; its report is saved and the fork is gone on return.

        Raises:
            RequestError: a probe cannot be run. Nothing was done.
            StorageError: the report cannot be written.
        """
        for probe in self._request.probes:
            check_probe(probe)
        catalog = IcebergCatalog(configured_catalog(self._cluster.config))
        ledger = self._cluster.ledger
        with closing(catalog):
            ledger.drills.put(self.drill)
            _log.info("drill_began", drill=self.drill.id)
            with LagSampler(ledger) as sampler:
                try:
                    self._rehearse(catalog)
                except ReplicationError as error:
                    self._fail(str(error))
                except BaseException as error:
                    self._fail("it was interrupted" if isinstance(error, KeyboardInterrupt) else one_line(error))
                    raise
                finally:
                    self.report = replace(self.report, samples=sampler.samples)
                    self._end(catalog)
            return self.report

    def _rehearse(self, catalog: IcebergCatalog) -> None:
        ledger, settings, origin = self._cluster.ledger, self._settings, self._origin()
        with self._phase("plan"):
            self._plan(origin)
        with self._phase("apply"):
            if not applied_within(ledger, settings.apply_timeout_s):
                self._fail(
                    f"what had landed was not in the tables within {settings.apply_timeout_s:g} s: walship status"
                )
        with self._phase("fork"):
            fork = make_fork(catalog, ledger, self.drill, settings.write_bytes_max)
            forked = now_us()
        is_ahead = fork.instant > forked or any(clock.commit > forked for clock in ledger.time.ahead())
        rpo_s = None if is_ahead else round((forked - fork.instant) / 1e6, 3)
        self.drill = replace(self.drill, instant=fork.instant, rpo_s=rpo_s)
        ledger.drills.put(self.drill)
        names = tuple(table.spec.name for table in fork.tables)
        self.report = replace(self.report, tables=names, left_out=dict(fork.left_out))
        for name, why in sorted(fork.left_out.items()):
            self._fail(f"{name} is not in the fork: {why}")
        with OpenFork(IcebergCatalog(catalog.properties), fork) as opened:
            with self._phase("read"):
                self._read_all(opened)
            taken = sum(phase.end_s - phase.begin_s for phase in self.report.phases if phase.name != "fork")
            self.drill = replace(self.drill, rto_s=round(taken, 3))
            file = fork.save(self._folder)
            with self._phase("probes"):
                self._probe(opened, self._environment(fork, file))
        if self._request.rehearse is not None:
            with self._phase("switchover plan"):
                self._plan_switchover(self._request.rehearse)

    def _origin(self) -> str:
        """The id of the only one that answers as ACTIVE, of several clusters that send here; "" for none."""
        context = RoleChange(self._cluster)
        sources = {route.source for route in self._cluster.ledger.landing.routes()}
        there = [(str(each), answer(context, each)) for each in sources] if len(sources) > 1 else []
        active = [id for id, found in there if found is not None and found.role == Role.ACTIVE.value]
        return active[0] if len(active) == 1 else ""

    def _plan(self, origin: str) -> None:
        if self._cluster.coordination.role().state.role is Role.ACTIVE:
            note = f"{self._cluster.name} is ACTIVE, so it has nothing to take over"
            self.report = replace(self.report, failover_note=note)
            return
        try:
            plan = plan_failover(RoleChange(self._cluster), origin, force=True)
            self.report = replace(self.report, failover=plan)
            for refusal in plan.refusals:
                self._fail(f"a failover would be refused: {refusal}")
        except RequestError as error:  # no other cluster sends to this one, or several do
            self.report = replace(self.report, failover_note=str(error))

    def _plan_switchover(self, rehearse: Callable[[], SwitchoverPlan]) -> None:
        try:
            plan = rehearse()
        except ReplicationError as error:
            self.report = replace(self.report, switchover_note=str(error))
            self._fail(f"the switchover could not be planned: {error}")
            return
        self.report = replace(self.report, switchover=plan)
        for refusal in plan.refusals:
            self._fail(f"a switchover would be refused: {refusal}")

    def _read_all(self, opened: OpenFork) -> None:
        """Read a row of every table: its files are there, and can be read."""
        for name in opened.tables:
            try:
                opened.read(name, limit=1).read_all()
            except ReplicationError as error:
                self._fail(f"{name} cannot be read: {error}")

    def _probe(self, opened: OpenFork, environment: dict[str, str]) -> None:
        for probe in self._request.probes:
            self._request.report(f"probe {probe.name}")
            left_s = self._settings.timeout_s - (time.monotonic() - self._began_s)
            if left_s <= 0:
                self._fail(f"{probe.name} was not run: the drill took {self._settings.timeout_s:g} s")
                continue
            longest_s = self._request.probe_timeout_s or self._settings.probe_timeout_s
            result = run_probe(probe, opened, environment, min(longest_s, left_s))
            self.report = replace(self.report, probes=(*self.report.probes, result))
            if not result.passed:
                self._fail(f"probe {result.name}: {result.why}")

    def _environment(self, fork: Fork, file: Path) -> dict[str, str]:
        paths = [_SOURCE, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        programs = [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
        return {
            "WALSHIP_CLUSTER": self._request.target,
            "WALSHIP_DRILL": fork.id,
            "WALSHIP_DRILL_FOLDER": str(file.parent),
            "WALSHIP_DRILL_INSTANT": str(fork.instant),
            "WALSHIP_DRILL_TAG": fork.tag,
            "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),
            "PATH": os.pathsep.join(programs),
        }

    @property
    def _folder(self) -> Path:
        return self._cluster.config.drills_dir / self.drill.id

    def _end(self, catalog: IcebergCatalog) -> None:
        """Write what became of it, and remove the fork; the tags stay for as long as the record says."""
        ended = now_us()
        kept_until = ended + int(self._settings.keep_s * 1e6) if self.drill.instant else 0
        why = "; ".join(self.report.problems)[:2000]
        report = str(self._folder / "report.html")
        self.drill = replace(self.drill, ended=ended, passed=not why, why=why, kept_until=kept_until, report=report)
        self.report = replace(self.report, drill=self.drill)
        (self._folder / FORK_FILE).unlink(missing_ok=True)
        try:
            save_report(self.report, self._folder)  # first: a drill that is said to have ended has a report
        finally:
            try:
                remove_fork(catalog, self._cluster.ledger, self.drill, keep_tags=kept_until > 0)
            finally:
                self._cluster.ledger.drills.put(self.drill)
                _log.info("drill_ended", drill=self.drill.id, passed=self.drill.passed, why=why)

    def _fail(self, problem: str) -> None:
        self.report = replace(self.report, problems=(*self.report.problems, storable(problem)))

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        self._request.report(name)
        begin_s = time.monotonic() - self._began_s
        try:
            yield
        finally:
            phase = DrillPhase(name, round(begin_s, 3), round(time.monotonic() - self._began_s, 3))
            self.report = replace(self.report, phases=(*self.report.phases, phase))
