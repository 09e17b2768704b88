"""``walship demo --graph``: a ring, a diamond or two masters, with a live picture of clusters and routes.

Several clusters write, also to the same keys. A receiver is killed midway. At the end all clusters are compared with
the first, and one key is traced.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from peer.client.cluster import Cluster
from peer.client.comparison import compare_clusters
from peer.client.connect import connect
from peer.tables.trace import Trace
from peer.verify.verdict import Verdict
from replication.core.position import Position
from replication.errors import DivergenceError
from shell.cli.render import Printer
from shell.cli.verdicts import show_verdicts
from shell.cli.versions import show_trace
from shell.demo.data import DemoTable, load
from shell.demo.display import Display, at_cluster, show_next
from shell.demo.graph_picture import GraphDisplay
from shell.demo.picture import SHAPES, Shape
from shell.demo.running import demo_sites, paced
from shell.demo.sites import DemoSite
from shell.processes.launched import await_ready

START_TIMEOUT_S = 240.0
VISIBLE_TIMEOUT_S = 180.0
WRITE_SECONDS = 15.0
BATCH_ROWS = 512
TRACED = "JFK"


@dataclass(frozen=True, slots=True)
class GraphResult:
    """What the demo found: every cluster compared with the first, and where the versions of one key came from."""

    graph: str
    seconds: float
    rows_written: int
    verdicts: tuple[Verdict, ...]
    traced: Trace


def run_graph_demo(printer: Printer, folder: Path, graph: str, *, keep: bool) -> GraphResult:
    """Run the demo in ``folder``; nothing it started is left when it returns, unless ``keep``.

    Raises:
        ConfigError: this machine lacks something the demo needs.
        DivergenceError: the clusters are not the same.
    """
    shape = SHAPES[graph]
    began = time.monotonic()
    with demo_sites(printer, folder, tuple(shape.boxes), keep=keep) as made:
        sites = {site.name: site for site in made}
        with GraphDisplay(printer, shape, made) as display, closing(display.watch):
            verdicts, traced = _shown(shape, sites, display)
        result = GraphResult(graph, time.monotonic() - began, display.written.total(), verdicts, traced)
        _report(printer, result, folder, keep)
    if not all(verdict.same for verdict in verdicts):
        raise DivergenceError("The clusters are not the same after the demo", f"Look into {folder}, and report this")
    return result


def _shown(shape: Shape, sites: Mapping[str, DemoSite], display: GraphDisplay) -> tuple[tuple[Verdict, ...], Trace]:
    """Run everything that the picture shows, from the start of the clusters to their comparison."""
    for site in sites.values():
        site.start()
    display.event(f"starting {', '.join(sites)}: ZooKeeper, master, worker, receiver and replay each")
    await_ready(list(sites.values()), START_TIMEOUT_S)
    with ExitStack() as stack:
        clusters = {name: stack.enter_context(connect(site.file)) for name, site in sites.items()}
        for name in clusters:
            display.watch.open(name)
        display.event("all are up")
        data = load()
        tables = (data.airports, data.weather)
        _lay_out(shape, clusters, sites, tables, display)
        positions = _Story(shape, clusters, sites, display).write(tables)
        display.event("all is durable where it was written; waiting until every cluster shows everything")
        for cluster in clusters.values():
            for position in positions.values():
                cluster.wait(position, until="visible", timeout_s=VISIBLE_TIMEOUT_S)
        display.event("every cluster shows everything; comparing them")
        first, *others = clusters.values()
        names = [table.name for table in tables]
        verdicts = [verdict for other in others for verdict in compare_clusters(first, other, names, VISIBLE_TIMEOUT_S)]
        traced = others[-1].trace(data.airports.name, {"faa": TRACED})
        display.event("compared")
        return tuple(verdicts), traced


def _lay_out(
    shape: Shape,
    clusters: Mapping[str, Cluster],
    sites: Mapping[str, DemoSite],
    tables: tuple[DemoTable, ...],
    display: Display,
) -> None:
    first = next(iter(clusters.values()))
    for table in tables:
        first.create_table(table.name, table.rows.schema, table.key)
    for source, peer in shape.routes:
        sites[peer].gets(tables, clusters[source])
        display.event(f"{source}: definecluster {peer}; enablereplication of {len(tables)} tables")


class _Story:
    """Writers write in turns, then change the same airports; a receiver is killed meanwhile.

    Clusters that no route leads to write; if there are none, all that send.
    """

    def __init__(
        self,
        shape: Shape,
        clusters: Mapping[str, Cluster],
        sites: Mapping[str, DemoSite],
        display: GraphDisplay,
    ) -> None:
        self._clusters = clusters
        self._sites = sites
        self._display = display
        sources = {source for source, _ in shape.routes}
        fed = {peer for _, peer in shape.routes}
        self._writers = [name for name in clusters if name not in fed] or [n for n in clusters if n in sources]
        self._relay = next((name for name in clusters if name in sources and name in fed), next(iter(fed)))

    def write(self, tables: tuple[DemoTable, ...]) -> dict[str, Position]:
        """The position of all that each writer wrote."""
        positions: dict[str, Position] = {}
        kills = [(0.4, self._sites[self._relay], "receiver")]
        for number, table, batch in paced(tables, BATCH_ROWS, WRITE_SECONDS, kills, self._display.event):
            self._append(positions, self._writers[number % len(self._writers)], table, batch)
        airports = tables[0]
        for n, name in enumerate(self._writers * 2):
            at = airports.rows.schema.get_field_index("alt")
            changed = airports.rows.set_column(
                at, airports.rows.schema.field(at), pa.array([n] * airports.rows.num_rows, airports.rows["alt"].type)
            )
            self._append(positions, name, airports.name, changed)
        who = " and ".join(self._writers)
        self._display.event(f"{who} changed every airport, twice each: the newest write of a key counts everywhere")
        return positions

    def _append(self, positions: dict[str, Position], name: str, table: str, rows: pa.Table | pa.RecordBatch) -> None:
        reached = self._clusters[name].upsert(table, rows)
        positions[name] = positions[name].join(reached) if name in positions else reached
        self._display.wrote(name, rows)


def _report(printer: Printer, result: GraphResult, folder: Path, keep: bool) -> None:
    if printer.as_json:
        return
    printer.line("")
    by_pair: dict[str, list[Verdict]] = {}
    for verdict in result.verdicts:
        by_pair.setdefault(verdict.right.cluster, []).append(verdict)
    for of_pair in by_pair.values():
        show_verdicts(printer, of_pair, 5)
    printer.line(f"\n{result.rows_written:,} rows written; every cluster was compared with the first, row by row.")
    printer.line(f"\nwalship trace {result.traced.table} {TRACED}, asked of {result.traced.cluster}:")
    show_trace(printer, result.traced, values=False)
    at = at_cluster(folder, result.traced.cluster)
    kept = (
        f"walship status {at}",
        f"walship monitor {at}",
        f"walship trace ops.airports {TRACED} {at}",
        f'for file in {shlex.quote(str(folder))}/*/walship.toml; do walship down --cluster "$file"; done',
    )
    ended = (
        f"walship demo --graph {result.graph} --keep   leaves the clusters running, to look around in",
        "deploy/cookbook                      how to lay out a graph of your own",
    )
    show_next(printer, result.seconds, kept if keep else ended)
