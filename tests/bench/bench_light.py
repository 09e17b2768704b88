"""What a person pays before any work is done: commands that only answer, waits, reads of one key, and idling.

Each row is a function of a running pair that returns figures; ``QUIET`` and ``WRITTEN`` name them all. Commands are
measured in turns, so that a change of the machine's speed meets all of them, and medians are reported. Beside them
stands a probe: how long the bare interpreter takes, and what fdatasync costs.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from tests.bench.clusters import ROOT, TABLE, Pair, Site, pair
from tests.bench.measure import QUICK, Figure, at_most, percentile
from tests.bench.peers.peer import free_port

TURNS = 5 if QUICK else 15
TABLES = 100 if QUICK else 1000
WAITS = 50 if QUICK else 300
IDLE_S = 15 if QUICK else 60
SETTLE_S = 5  # after the last row, before the idle time begins
ENTRY = (sys.executable, "-c", "import sys; from shell.entry import main; sys.exit(main())")  # the walship command
VERBS = {"status": (0.3, 0.5), "listtables": (0.3, 0.3), "listclusters": (0.3, 0.3)}  # bars in s: a pair, many tables


def run() -> list[Figure]:
    """A pair of clusters for the rows of each part: writes start Spark, which goes on for a while."""
    figures: list[Figure] = []
    for part in (QUIET, WRITTEN):
        with pair() as both:
            figures += [figure for row in part for figure in row(both)]
    return figures


def of_no_cluster(both: Pair) -> list[Figure]:
    """The bare interpreter, and what needs no cluster."""
    found = medians({"bare": (sys.executable, "-c", "0"), "version": (*ENTRY, "--version"), "help": (*ENTRY, "--help")})
    return [
        Figure("probe: bare interpreter, start and end", found["bare"] * 1e3, "ms"),
        at_most("walship --version", found["version"], "s", 0.12),
        at_most("walship --help", found["help"], "s", 0.12),
    ]


def start(both: Pair) -> list[Figure]:
    """``up --detach`` of a third cluster, beside the idle pair: until it can write, ship and land, and with replay."""
    figures, home = [], both.sites[0].home.parent
    for name, roles, bar in (("north", "master,worker,receiver", 4.0), ("south", "", 7.0)):
        site = Site(name, home / name, free_port())
        site.make({})
        began = time.monotonic()
        site.walship("up", "--detach", "--config", str(site.file), *(("--roles", roles) if roles else ()))
        taken = time.monotonic() - began
        site.walship("down", "--config", str(site.file))
        figures.append(at_most(f"walship up --detach, {roles or 'all roles'}", taken, "s", bar))
    return figures


def on_a_pair(both: Pair) -> list[Figure]:
    """Verbs that only read, with one table."""
    return _verbs(both, "on a pair", 0)


def with_many_tables(both: Pair) -> list[Figure]:
    """The same with many tables that nobody writes to."""
    for number in range(TABLES):
        both.east.create_table(f"many.t{number}", "k long, v double", key=["k"])
    return _verbs(both, f"with {TABLES:,} tables", 1)


def _verbs(both: Pair, where: str, bar: int) -> list[Figure]:
    command = (*ENTRY, "--cluster", str(both.sites[0].file))
    found = medians({verb: (*command, verb) for verb in VERBS})
    return [at_most(f"walship {verb} {where}", found[verb], "s", bars[bar]) for verb, bars in VERBS.items()]


def waits(both: Pair) -> list[Figure]:
    """One client that writes a row, waits for it at the peer, and writes the next."""
    figures = [Figure("probe: fdatasync of 4 KiB, p50", _fdatasync_ms(), "ms")]
    both.east.wait(both.east.upsert(TABLE, {"k": b"0", "v": b"first"}), "west", "visible")
    for until, bars in (("durable", (4.0, 15.0)), ("visible", (80.0, 300.0))):
        taken = []
        for number in range(WAITS):
            position = both.east.upsert(TABLE, {"k": b"%d" % number, "v": b"value"})
            began = time.perf_counter()
            both.east.wait(position, "west", until)
            taken.append((time.perf_counter() - began) * 1e3)
        for quantile, bar in zip((0.5, 0.99), bars, strict=True):
            name = f'wait(until="{until}") after one append, p{quantile * 100:.0f}'
            figures.append(at_most(name, percentile(taken, quantile), "ms", bar))
    return figures


def keyed_read(both: Pair) -> list[Figure]:
    """Read one key at the peer through the library."""
    taken = []
    for number in range(WAITS):
        began = time.perf_counter()
        rows = both.west.read(TABLE, where=f"k = '{number % 10}'::blob").read_all()
        taken.append((time.perf_counter() - began) * 1e3)
        assert rows.num_rows == 1
    return [at_most("library read of one key, p50", percentile(taken[1:], 0.5), "ms", 15.0)]


def idle(both: Pair) -> list[Figure]:
    """The processor time and memory of all processes of both clusters while nobody uses them."""
    return _idle(both, "an idle pair", 1.5)


def idle_with_many_tables(both: Pair) -> list[Figure]:
    """The same with many tables that nobody writes to."""
    return _idle(both, f"an idle pair with {TABLES:,} tables", 5.0)


def _idle(both: Pair, what: str, cpu_percent_max: float) -> list[Figure]:
    cpu, memory = idle_figures(what, [site.home for site in both.sites])
    return [at_most(cpu.name, cpu.value, "%", cpu_percent_max), at_most(memory.name, memory.value, "MiB", 900)]


def idle_figures(what: str, homes: Sequence[Path]) -> list[Figure]:
    """CPU in percent of a core, and memory in MiB, of the processes that name these directories, and their children."""
    time.sleep(SETTLE_S)
    pids = [pid for home in homes for pid in _processes(home)]
    before, began = sum(map(_cpu_s, pids)), time.monotonic()
    time.sleep(IDLE_S)
    used = (sum(map(_cpu_s, pids)) - before) / (time.monotonic() - began)
    memory = sum(map(_pss_mib, pids))  # pages that processes share count once
    return [
        Figure(f"CPU of {what}, of one core", used * 100, "%"),
        Figure(f"memory of {what} ({len(pids)} processes)", memory, "MiB"),
    ]


def _processes(home: Path) -> Iterator[int]:
    """The processes that name a cluster's directory in their command line, and their children."""
    parents, found = {}, set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            command, status = (entry / "cmdline").read_bytes(), (entry / "status").read_text()
        except OSError:
            continue
        pid, parent = int(entry.name), re.search(r"(?m)^PPid:\s+(\d+)", status)
        parents[pid] = int(parent[1]) if parent else 0
        if os.fsencode(home) in command:
            found.add(pid)
    for pid in parents:
        above = pid
        while above and above not in found:
            above = parents.get(above, 0)
        if above and pid != os.getpid():
            yield pid


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _pss_mib(pid: int) -> float:
    try:
        found = re.search(r"(?m)^Pss:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text())
    except OSError:  # it has ended
        return 0.0
    return int(found[1]) / 1024 if found else 0.0


def _fdatasync_ms() -> float:
    taken = []
    with tempfile.TemporaryFile(dir=os.environ.get("WALSHIP_BENCH_DIR")) as file:
        for _ in range(WAITS):
            file.write(bytes(4096))
            file.flush()
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            taken.append((time.perf_counter() - began) * 1e3)
    return percentile(taken, 0.5)


def medians(commands: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """Median seconds of each command, in turns after one that warms the caches."""
    taken: dict[str, list[float]] = {name: [] for name in commands}
    for turn in range(TURNS + 1):
        for name, command in commands.items():
            began = time.perf_counter()
            subprocess.run(command, stdout=subprocess.DEVNULL, cwd=ROOT, check=True)
            if turn:
                taken[name].append(time.perf_counter() - began)
    return {name: statistics.median(seconds) for name, seconds in taken.items()}


Row = Callable[[Pair], list[Figure]]
QUIET: tuple[Row, ...] = (of_no_cluster, on_a_pair, idle, start, with_many_tables, idle_with_many_tables)
WRITTEN: tuple[Row, ...] = (waits, keyed_read)
