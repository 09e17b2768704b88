"""``walship demo --failover``: a switchover under load, a drill, a lost site, its return, and the way back.

An application writes flights to whichever cluster is ACTIVE. East hands over to west without losing a row. A failover
to east is rehearsed. West hangs and is killed; east shows what may be lost, and takes over. West returns, its lost
writes are merged, and it is ACTIVE again. At the end every acked row is at both.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from peer.client.cluster import Cluster
from peer.client.comparison import compare_clusters
from peer.client.connect import connect
from peer.drill.run import DrillRequest, RunningDrill
from peer.failover.failover import failover, plan_failover
from peer.failover.lost_writes import LostWrite, lost_writes, merge
from peer.failover.role_change import RoleChange
from peer.failover.switchover import switchover
from peer.polling import polls
from peer.verify.verdict import Verdict
from replication.core.roles import Role
from replication.errors import DivergenceError, ReplicationError, WaitTimeoutError
from shell.cli.render import Printer, seconds_text
from shell.cli.verdicts import show_verdicts
from shell.demo.data import DemoTable, is_held, load
from shell.demo.display import at_cluster, show_next
from shell.demo.failover_picture import FailoverDisplay
from shell.demo.load import BATCH_ROWS, Acks, DemoApplication
from shell.demo.running import demo_sites
from shell.demo.sites import DemoSite
from shell.processes.launched import await_ready

START_TIMEOUT_S = 180.0
WAIT_TIMEOUT_S = 120.0
_WRITE_S, _HANG_S = 4.0, 2.0
_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class FailoverResult:
    """What the demo found. Times in seconds; rows are those that the application got acked.

    ``outages_s`` are of both switchovers. ``failover_s`` is from the decision to the first ack of the new cluster;
    ``unknown_s`` is the loss that was told before it; ``lost_rows`` came too late, and were merged.
    """

    seconds: float
    rows_acked: int
    outages_s: tuple[float | None, float | None]
    drill_rpo_s: float | None
    drill_rto_s: float | None
    unknown_s: float | None
    failover_s: float
    lost_rows: int
    verdicts: tuple[Verdict, ...]
    as_expected: bool


def run_failover_demo(printer: Printer, folder: Path, *, keep: bool) -> FailoverResult:
    """Run the demo in ``folder``; nothing it started is left when it returns, unless ``keep``.

    Raises:
        ConfigError: this machine lacks something the demo needs.
        DivergenceError: an acked row is missing, or the two sides are not the same.
    """
    began = time.monotonic()
    with demo_sites(printer, folder, ("east", "west"), keep=keep, standby=("west",)) as sites:
        acks = Acks()
        with FailoverDisplay(printer, sites, acks) as display, closing(display.watch):
            story = _Story(sites, acks, display)
            story.start()
            story.play()
            verdicts, as_expected = story.verify()
        result = story.result(time.monotonic() - began, verdicts, as_expected)
        _report(printer, result, folder, keep)
    if not as_expected or not all(verdict.same for verdict in verdicts):
        raise DivergenceError("An acked row is missing after the demo", f"Look into {folder}, and report this")
    return result


class _Story:
    """Everything that happens, in order."""

    def __init__(self, sites: list[DemoSite], acks: Acks, display: FailoverDisplay) -> None:
        self._east, self._west = sites
        self._acks, self._display = acks, display
        self._table: DemoTable = load().flights
        self._outages: list[float | None] = []
        self._drill: tuple[float | None, float | None] = (None, None)
        self._unknown_s: float | None = None
        self._failover_s = 0.0
        self._lost: list[LostWrite] = []
        self._application: DemoApplication | None = None

    def start(self) -> None:
        """Start both clusters and lay out the table."""
        for site in (self._east, self._west):
            site.start()
        self._display.event("starting east (ACTIVE) and west (STANDBY): five processes each")
        await_ready([self._east, self._west], START_TIMEOUT_S)
        with connect(self._east.file) as east:
            east.create_table(self._table.name, self._table.rows.schema, self._table.key)
            self._west.gets([self._table], east)
        for name in ("east", "west"):
            self._display.watch.open(name)
        self._display.event(f"both are up; {self._table.name} goes to west")

    def play(self) -> None:
        """The whole play; the application has stopped on return."""
        try:
            self._apply("an application writes: connect([east, west], follow=True)")
            time.sleep(_WRITE_S)
            self._switch(self._east, "west")
            self._rehearse()
            self._lose_west()
            self._fail_over()
            self._return_of_west()
            self._switch(self._east, "west")
            time.sleep(_WRITE_S / 2)
        finally:
            if self._application is not None:
                self._application.stop()

    def verify(self) -> tuple[tuple[Verdict, ...], bool]:
        """Compare both sides, and west with what was acked."""
        self._display.event("the application stops; comparing both sides, and west with every acked row")
        with connect(self._east.file, for_writing=False) as east, connect(self._west.file, for_writing=False) as west:
            for position in self._acks.positions.values():
                for cluster in (east, west):
                    cluster.wait(position, until="visible", timeout_s=WAIT_TIMEOUT_S)
            (verdict,) = compare_clusters(west, east, [self._table.name], WAIT_TIMEOUT_S)
            batches = dict.fromkeys(self._acks.batches)
            rows = pa.concat_tables([self._table.rows.slice(n * BATCH_ROWS, BATCH_ROWS) for n in batches])
            as_expected = is_held(rows, west.table(self._table.name), verdict.left)
        return (verdict,), as_expected

    def result(self, seconds: float, verdicts: tuple[Verdict, ...], as_expected: bool) -> FailoverResult:
        """What was measured."""
        first, second = self._outages
        rows = sum(self._acks.rows.values())
        lost = sum(each.rows for each in self._lost)
        measured = (*self._drill, self._unknown_s, self._failover_s, lost)
        return FailoverResult(seconds, rows, (first, second), *measured, verdicts, as_expected)

    def _apply(self, text: str) -> None:
        self._display.event(text)
        self._application = DemoApplication([self._east.file, self._west.file], self._table, self._acks)

    def _switch(self, origin: DemoSite, to: str) -> None:
        self._display.event(f"walship switchover {to}")
        with connect(origin.file) as cluster:
            done = switchover(RoleChange(cluster, self._quiet), to)
        self._outages.append(done.outage_s)
        outage = "" if done.outage_s is None else f"no writes for {seconds_text(done.outage_s)}, "
        self._display.result(f"switchover {origin.name} → {to}", f"{outage}no acked row lost")
        self._await(lambda: self._acks.beats[-1][1] == to, f"the application's acks by {to}")
        time.sleep(_WRITE_S / 2)

    def _rehearse(self) -> None:
        probe = self._east.config.run_dir / "probe.sql"
        probe.write_text(f"select count(*) > 0 from {self._table.name}\n", encoding="utf-8")
        self._display.event("walship drill east: would east be ready? On a fork, while all goes on")
        with connect(self._east.file, for_writing=False) as east:
            report = RunningDrill(east, DrillRequest((probe,), target=str(self._east.file))).run()
        drill = report.drill
        self._drill = drill.rpo_s, drill.rto_s
        if not drill.passed or drill.rpo_s is None or drill.rto_s is None:
            raise ReplicationError(f"The drill did not pass: {'; '.join(report.problems)}", "Report this")
        self._display.result("drill of east", f"RPO {seconds_text(drill.rpo_s)}, RTO {seconds_text(drill.rto_s)}")

    def _lose_west(self) -> None:
        pid = self._west.freeze("worker")
        self._display.event(f"kill -STOP {pid}: west's worker hangs. West goes on acking, and nothing reaches east")
        time.sleep(_HANG_S)
        assert self._application is not None, "it writes"
        self._application.stop()
        self._display.watch.lose("west")
        count = self._west.kill_all()
        self._display.event(f"kill -9 of all {count} processes of west, and of the application there: the site is lost")

    def _fail_over(self) -> None:
        self._apply("the application starts elsewhere, and waits for an ACTIVE cluster")
        with connect(self._east.file) as east:
            context = RoleChange(east, self._quiet)
            plan = plan_failover(context, "west")
            self._unknown_s = plan.loss.seconds
            unknown = "all it acked" if plan.loss.seconds is None else f"the last {seconds_text(plan.loss.seconds)}"
            self._display.event(f"walship failover east --plan: what west acked in {unknown} may be lost")
            decided = time.monotonic()
            failover(context, plan)
        self._await(lambda: self._acks.last_s > decided, "an ack by east")
        self._failover_s = round(self._acks.last_s - decided, 3)
        text = f"acks {seconds_text(self._failover_s)} after the decision"
        self._display.result("failover west → east", text)

    def _return_of_west(self) -> None:
        self._display.event("west's site is back: walship up")
        self._west.start()
        await_ready([self._west], START_TIMEOUT_S)
        self._display.watch.open("west")
        with ExitStack() as stack:
            east, west = (
                stack.enter_context(connect(site.file, for_writing=False)) for site in (self._east, self._west)
            )
            self._await(lambda: west.coordination.role().state.role is Role.STANDBY, "that west is STANDBY")
            self._display.event("west has learned who took over, and is STANDBY. What it had not sent comes late")
            west.drain("east", timeout_s=WAIT_TIMEOUT_S)
            self._lost = self._settled(east)
            rows = sum(each.rows for each in self._lost)
            self._display.event(f"walship lostwrites list: {rows:,} rows that west had acked, kept apart, in no table")
            for cluster in (east, west):
                merge(cluster)
            self._display.result("return of west", f"{rows:,} lost writes listed, and merged: none is lost")

    def _settled(self, cluster: Cluster) -> list[LostWrite]:
        """The lost writes, once replay has seen all that landed."""
        pending = cluster.ledger.replay.pending
        self._await(lambda: not any(part.row.is_landed for part in pending()), "replay of it at east")
        return lost_writes(cluster)

    def _await(self, condition: Callable[[], bool], what: str) -> None:
        if not any(condition() for _ in polls(WAIT_TIMEOUT_S, _POLL_S)):
            raise WaitTimeoutError(f"{what} did not come within {WAIT_TIMEOUT_S:g} s", "Report this")

    def _quiet(self, text: str) -> None:
        """Steps of a role change are too many for the picture."""


def _report(printer: Printer, result: FailoverResult, folder: Path, keep: bool) -> None:
    if printer.as_json:
        return
    printer.line("")
    show_verdicts(printer, list(result.verdicts), 5)
    found = "all are" if result.as_expected else "NOT all are"
    printer.line(f"{result.rows_acked:,} rows acked through two switchovers and a lost site; {found} at both sides.")
    east, west = at_cluster(folder, "east"), at_cluster(folder, "west")
    kept = (
        f"walship status {west}",
        f"walship monitor {west}",
        f"walship switchover east --plan {west}",
        f"walship drill east --history {east}",
        f"walship down {east}; walship down {west}",
    )
    ended = (
        "walship demo --failover --keep   leaves both clusters running, to look around in",
        "deploy/cookbook/switchover.md    how to do it with clusters of your own",
    )
    show_next(printer, result.seconds, kept if keep else ended)
