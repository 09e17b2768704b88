"""What a person pays before any work is done: the time of commands that only answer.

Each row is a function of a running pair that returns figures; ``ROWS`` names them all. Commands are measured in
turns, so that a change of the machine's speed meets all of them, and medians are reported. Beside them stands a probe:
how long the bare interpreter takes.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from tests.bench.clusters import ROOT, Pair, pair
from tests.bench.measure import QUICK, Figure, at_most

TURNS = 5 if QUICK else 15
TABLES = 100 if QUICK else 1000
VERBS = {"status": (0.3, 0.5), "listtables": (0.3, 0.3), "listclusters": (0.3, 0.3)}  # bars in s: a pair, many tables


def run() -> list[Figure]:
    """One pair of clusters for all rows."""
    with pair() as both:
        return [figure for row in ROWS for figure in row(both)]


def of_no_cluster(both: Pair) -> list[Figure]:
    """The bare interpreter, and what needs no cluster."""
    entry = (sys.executable, "-c", "import sys; from shell.entry import main; sys.exit(main())")
    found = medians({"bare": (sys.executable, "-c", "0"), "version": (*entry, "--version"), "help": (*entry, "--help")})
    return [
        Figure("probe: bare interpreter, start and end", found["bare"] * 1e3, "ms"),
        at_most("walship --version", found["version"], "s", 0.12),
        at_most("walship --help", found["help"], "s", 0.12),
    ]


def on_a_pair(both: Pair) -> list[Figure]:
    """Verbs that only read, with one table."""
    return _verbs(both, "on a pair", 0)


def with_many_tables(both: Pair) -> list[Figure]:
    """The same with many tables that nobody writes to."""
    for number in range(TABLES):
        both.east.create_table(f"many.t{number}", "k long, v double", key=["k"])
    return _verbs(both, f"with {TABLES:,} tables", 1)


def _verbs(both: Pair, where: str, bar: int) -> list[Figure]:
    command = (sys.executable, "-m", "shell.main", "--cluster", str(both.sites[0].file))
    found = medians({verb: (*command, verb) for verb in VERBS})
    return [at_most(f"walship {verb} {where}", found[verb], "s", bars[bar]) for verb, bars in VERBS.items()]


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


ROWS: tuple[Callable[[Pair], list[Figure]], ...] = (of_no_cluster, on_a_pair, with_many_tables)
