"""``walship demo``: two clusters replicate flight data for about a minute, while two processes are killed.

Three tables are written through east's writer, then corrections and deletes. West's receiver and east's worker are
killed midway. At the end both sides are compared.
"""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import duckdb
import pyarrow as pa

from peer.client.cluster import Cluster
from peer.client.comparison import compare_clusters
from peer.client.connect import connect
from peer.polling import polls
from peer.replay_report import ReplayReport
from peer.verify.verdict import Verdict
from replication.core.position import Position
from replication.errors import DivergenceError
from shell.cli.render import Printer
from shell.cli.verdicts import show_verdicts
from shell.demo.data import DemoData, DemoTable, cancelled, corrected_delays, is_held, load
from shell.demo.display import Display, at_cluster, show_next
from shell.demo.graph_picture import GraphDisplay
from shell.demo.picture import ONE_WAY
from shell.demo.running import demo_sites, paced
from shell.demo.sites import SPARK, DemoSite
from shell.processes.launched import await_ready
from shell.processes.spark_cluster import SparkCluster
from shell.status.page import work_text

START_TIMEOUT_S = 90.0
VISIBLE_TIMEOUT_S = 120.0
WRITE_SECONDS = 7.0  # the rows are spread over this time, so that there is something to watch
_LOOK_S = 0.2
BATCH_ROWS = 4096
QUESTION = (
    "select carrier, count(*) as flights, round(avg(arr_delay), 1) as mean_arrival_delay_min "
    "from ops.flights group by carrier order by flights desc limit 5"
)


@dataclass(frozen=True, slots=True)
class DemoResult:
    """What the demo found."""

    seconds: float
    rows_written: int
    verdicts: tuple[Verdict, ...]
    as_expected: bool
    lag_most_bytes: int
    replay_at_west: str = ""
    spark_master: str = ""  # of the Spark cluster that both replayed on


def run_demo(printer: Printer, folder: Path, *, keep: bool, spark_cluster: bool = False) -> DemoResult:
    """Run the demo in ``folder``; nothing it started is left when it returns, unless ``keep``.

    With ``spark_cluster`` both clusters replay on one standalone Spark cluster, whose processes are started here.

    Raises:
        ConfigError: this machine lacks something the demo needs.
        DivergenceError: the two sides are not the same.
    """
    began = time.monotonic()
    spark = SparkCluster(folder / SPARK, left_running=keep) if spark_cluster else None
    jobs = ("west",) if spark is None else ("east", "west")
    with demo_sites(printer, folder, ("east", "west"), keep=keep, spark=spark, jobs=jobs) as (east_site, west_site):
        with GraphDisplay(printer, ONE_WAY, (east_site, west_site)) as display, closing(display.watch):
            if spark is not None:
                _start_spark(spark, display)
            result, answer = _shown(east_site, west_site, display, began)
        if spark is not None:
            result = replace(result, spark_master=spark.url)
        _report(printer, result, answer, folder, keep)
        if spark is not None and keep:
            _report_spark(printer, spark)
    if not result.as_expected or not all(verdict.same for verdict in result.verdicts):
        raise DivergenceError("East and west are not the same after the demo", f"Look into {folder}, and report this")
    return result


def _start_spark(spark: SparkCluster, display: Display) -> None:
    display.event("starting a Spark cluster: a master and two workers of one core each")
    spark.start()
    display.event(f"Spark's master is up, and shows its workers and applications at {spark.page}")
    display.event("east and west replay on it: an application each, which takes one core")


def _shown(
    east_site: DemoSite, west_site: DemoSite, display: GraphDisplay, began: float
) -> tuple[DemoResult, list[dict[str, object]]]:
    """Run everything that the display shows, from start to comparison; the result, and the answer to ``QUESTION``."""
    sites = (east_site, west_site)
    for site in sites:
        site.start()
    display.event("starting east and west: ZooKeeper, master, worker, receiver and replay each")
    data = load()
    await_ready(sites, START_TIMEOUT_S)
    with connect(east_site.file) as east, connect(west_site.file) as west:
        display.event("both clusters are up")
        for site in sites:
            display.watch.open(site.name)
        _set_up(east, west_site, data, display)
        _await_spark(west, display)
        position = _Story(east, east_site, west_site, display).write(data)
        display.event("all is durable on east; waiting until west's tables show it")
        east.wait(position, cluster="west", until="visible", timeout_s=VISIBLE_TIMEOUT_S)
        display.event("west's tables show everything; comparing both sides")
        verdicts = compare_clusters(east, west, [table.name for table in data.tables], VISIBLE_TIMEOUT_S)
        expected = _as_expected(data, west, verdicts)
        display.event("compared")
        answer = west.sql(QUESTION).read_all().to_pylist()
        report = west.status().replay
    took, rows = time.monotonic() - began, display.written["east"]
    work = work_text(report) if report is not None else ""
    return DemoResult(took, rows, tuple(verdicts), expected, display.lag_most, work), answer


class _Story:
    """Writes everything through east, and kills two processes meanwhile."""

    def __init__(self, east: Cluster, east_site: DemoSite, west_site: DemoSite, display: GraphDisplay) -> None:
        self._east, self._east_site, self._west_site, self._display = east, east_site, west_site, display

    def write(self, data: DemoData) -> Position:
        """Write every row, then corrections, then deletes; the position of all."""
        flights = data.flights
        position = Position(self._east.id)
        kills = [(0.25, self._west_site, "receiver"), (0.7, self._east_site, "worker")]
        for _, table, batch in paced(data.tables, BATCH_ROWS, WRITE_SECONDS, kills, self._display.event):
            position = position.join(self._append(table, batch))
        corrections = corrected_delays(flights.rows)
        position = position.join(self._append(flights.name, corrections))
        self._display.event(f"{corrections.num_rows:,} corrected delays upserted")
        keys = cancelled(flights.rows, flights.key)
        position = position.join(self._east.delete(flights.name, keys))
        self._display.event(f"{keys.num_rows:,} cancelled flights deleted")
        return position

    def _append(self, table: str, rows: pa.Table | pa.RecordBatch) -> Position:
        position = self._east.upsert(table, rows)
        self._display.wrote("east", rows)
        return position


def _set_up(east: Cluster, west_site: DemoSite, data: DemoData, display: Display) -> None:
    for table in data.tables:
        east.create_table(table.name, table.rows.schema, table.key)
        if table.null_keys or table.repeated_keys:
            display.event(
                f"{table.name}: left out are {table.null_keys:,} rows without a key and {table.repeated_keys:,} whose "
                "key comes again; the last of each key is kept"
            )
    west_site.gets(data.tables, east)
    display.event("definecluster west")
    for table in data.tables:
        display.event(f"enablereplication -t {table.name} west")


def _await_spark(west: Cluster, display: Display) -> None:
    """Wait until west's Spark has started, or has failed to: the driver decodes everything then."""
    for _ in polls(START_TIMEOUT_S, _LOOK_S):
        report = ReplayReport.load(west.ledger.replay)
        if report is not None and report.spark != "starting":
            display.event(f"west: {report.spark or 'Spark is up: it replays by jobs'}")
            return


def _as_expected(data: DemoData, west: Cluster, verdicts: list[Verdict]) -> bool:
    """Whether west has exactly the rows of the source files, with corrections and deletes."""
    by_table = {verdict.table: verdict.right for verdict in verdicts}
    for table in data.tables:
        rows = _final_flights(table) if table is data.flights else table.rows
        if not is_held(rows, west.table(table.name), by_table[table.name]):
            return False
    return True


def _final_flights(table: DemoTable) -> pa.Table:
    names = {"rows": table.rows, "corrected": corrected_delays(table.rows), "gone": cancelled(table.rows, table.key)}
    with duckdb.connect(":memory:") as db:
        for name, content in names.items():
            db.register(name, content)
        key = ", ".join(table.key)
        return db.sql(
            f"select * from rows anti join corrected using ({key}) anti join gone using ({key}) "
            f"union all select * from corrected anti join gone using ({key})"
        ).to_arrow_table()


def _report(printer: Printer, result: DemoResult, answer: list[dict[str, object]], folder: Path, keep: bool) -> None:
    if printer.as_json:
        return
    printer.line("")
    show_verdicts(printer, list(result.verdicts), 5)
    source = "and equal to the source files with all corrections" if result.as_expected else "but NOT what was written"
    printer.line(f"{result.rows_written:,} rows written; both sides compared row by row, {source}.")
    printer.line(f"West {result.replay_at_west}.")
    printer.line(f"\nAsked of west: {QUESTION}")
    printer.rows(answer)
    east, west = at_cluster(folder, "east"), at_cluster(folder, "west")
    kept = (
        f"walship status {east}",
        f"walship monitor {east}",
        f'walship sql "select count(*) from ops.flights" {west}',
        f"walship shell {west}",
        f"walship down {east}; walship down {west}",
    )
    ended = (
        "walship demo --keep       leaves both clusters running, to look around in",
        "walship init DIR          makes a cluster of your own; walship up starts it",
    )
    show_next(printer, result.seconds, kept if keep else ended)


def _report_spark(printer: Printer, spark: SparkCluster) -> None:
    if not printer.as_json:
        printer.line(f"The Spark cluster runs, too. Its page: {spark.page}")
        printer.line(f"  kill {' '.join(str(each.pid) for each in spark.daemons)}       ends it, after both clusters")
