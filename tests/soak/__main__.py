"""``python -m tests.soak --minutes 10 --seed 1``: chained rows on two clusters under kills, switchovers and failovers.

Prints its seed and everything that it does. At the end each acked row must be at both clusters once, and each row must
be chained onto one that is there. What a failover loses is compared with what was told, and merged. Exit code 1, with
the clusters' folder kept, when anything is wrong.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from replication.errors import ReplicationError
from replication.tables.base import open_duckdb
from shell.processes.launched import await_ready
from tests.e2e.commands import ROOT
from tests.e2e.conftest import ROLES, START_TIMEOUT_S, Site, define, start
from tests.soak.chains import TABLE, Chain, problems, until

WRITERS = 2
Attempt = Callable[[Site, Site], int]


def by_command(site: Site, lost: Site) -> int:
    """Take over from a lost cluster by the command; the time at which the tables open."""
    return int(site.json("failover", site.name, "--from", lost.name, "--yes")["upto"])


class Soak:
    """Both clusters, the writers, and what is done to them."""

    def __init__(self, folder: Path, seed: int, stack: ExitStack) -> None:
        self.chance = random.Random(seed)
        self.began = time.monotonic()
        replay = {"fold_interval_s": 5.0, "spark_idle_s": 5.0}
        self.east = start(folder / "east", "east", replay=replay)
        self.west = start(folder / "west", "west", replay=replay, cluster={"standby": True})
        self.sites = (self.east, self.west)
        for site in self.sites:
            stack.callback(site.stop)
        await_ready(self.sites, START_TIMEOUT_S)
        define(self.east, self.west)
        self.east.shell("createtable", TABLE, "id long, after long", "-k", "id")
        self.east.shell("enablereplication", "-t", TABLE, "west")
        self.active: Site | None = self.east
        self.epochs: dict[int, str] = {}
        self.chains = [Chain(number, lambda: self.active) for number in range(1, WRITERS + 1)]
        for chain in self.chains:
            stack.callback(chain.close)

    def say(self, text: str) -> None:
        """Print what happens."""
        acked = sum(len(chain.acked) for chain in self.chains)
        print(f"{time.monotonic() - self.began:7.1f} s  {acked:6} acked  {text}", flush=True)

    def other(self, site: Site) -> Site:
        """The other cluster."""
        return self.west if site is self.east else self.east

    def run(self, seconds: float) -> Counter[str]:
        """One thing after the other; how often each was done."""
        done, deadline = Counter[str](), time.monotonic() + seconds
        actions: list[Callable[[], None]] = [self.kill, self.freeze, self.switchover, self.killed_switchover]
        actions += [self.failover, self.killed_failover]
        weights = [4, 2, 2, 3, 1, 1]
        while time.monotonic() < deadline:
            time.sleep(self.chance.uniform(0.5, 4))
            (action,) = self.chance.choices(actions, weights)
            action()
            done[action.__name__] += 1
            self.check_roles()
        return done

    def kill(self) -> None:
        """One process of one cluster; ``walship up`` starts it again."""
        site, role = self.chance.choice(self.sites), self.chance.choice(ROLES)
        self.say(f"kill {site.name}'s {role}")
        try:
            site.kill(role)
        except (ProcessLookupError, AssertionError):
            self.say("it is not there")

    def freeze(self) -> None:
        """One process stops for a moment."""
        site, role = self.chance.choice(self.sites), self.chance.choice(("worker", "receiver", "replay", "master"))
        pause_s = self.chance.uniform(0.5, 8)
        self.say(f"freeze {site.name}'s {role} for {pause_s:.1f} s")
        try:
            with site.frozen(role):
                time.sleep(pause_s)
        except ProcessLookupError:
            self.say("it is not there")

    def switchover(self) -> None:
        """To the other cluster."""
        self.finish_switchover()

    def killed_switchover(self) -> None:
        """As ``switchover``, while the command or a process of one of the clusters is killed, then again."""
        source = self._source()
        self._kill_during(source, self.sites, "switchover", self.other(source).name)
        self.finish_switchover()

    def killed_failover(self) -> None:
        """As ``failover``, while the command or a process of the cluster that takes over is killed, then again."""
        killed: list[Site] = []

        def attempt(site: Site, lost: Site) -> int:
            if killed:
                return by_command(site, lost)
            killed.append(site)
            self._kill_during(site, killed, "failover", site.name, "--from", lost.name, "--yes")
            raise AssertionError("it is run again, unless it was done")

        self.failover(attempt)

    def _kill_during(self, at: Site, sites: Sequence[Site], *command: str) -> None:
        """Run a command, and kill it or a process of one of the clusters after a while."""
        delay_s, victim = self.chance.uniform(0, 3), self.chance.choice(("shell", *ROLES))
        process = subprocess.Popen(
            [sys.executable, "-m", "shell.main", "--cluster", str(at.file), *command],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        time.sleep(delay_s)
        site = self.chance.choice(sites)
        whose = "the command" if victim == "shell" else f"{site.name}'s {victim}"
        self.say(f"{command[0]} to {command[1]}; after {delay_s:.1f} s kill {whose}")
        try:
            process.kill() if victim == "shell" else site.kill(victim)
        except (ProcessLookupError, AssertionError):
            self.say("it is not there")
        process.wait()

    def failover(self, attempt: Attempt = by_command) -> None:
        """Every process of the ACTIVE cluster is killed, the other takes over, and the first returns.

        ``attempt`` is called until it is done: the command by default. It returns the time at which the tables open.
        """
        lost = self._source()
        other = self.other(lost)
        until(lambda: other.json("status")["members"]["workers"] != [], f"a worker of {other.name}")
        self.say(f"kill all of {lost.name}, and fail over to {other.name}")
        lost.kill_all()
        acked = self.acked()
        told: list[int] = []

        def take_over() -> bool:
            is_done = other.json("readonly")["role"] == "ACTIVE" and not other.json("ops", "list")
            if not is_done:
                told.append(attempt(other, lost))
            return True

        until(take_over, f"{other.name} to take over")
        self.active = other
        upto = told[-1] if told else 0
        self.say(f"{other.name} is ACTIVE and opens at {upto}")
        time.sleep(self.chance.uniform(0, 4))
        lost.start()
        await_ready([lost], START_TIMEOUT_S)
        until(lambda: lost.json("readonly")["role"] == "STANDBY", f"{lost.name} to be STANDBY")

        def all_there() -> bool:
            return not acked - self.rows(other).keys() - self.lost(other)

        until(all_there, f"each acked row in {other.name}'s table or its lost writes")
        self._check_lost(lost, other, upto, acked)

        def merged() -> bool:
            for site in self.sites:
                site.shell("lostwrites", "merge")
            return not any(self.lost(site) for site in self.sites)

        until(merged, "the lost writes to be merged")

    def _check_lost(self, lost: Site, other: Site, upto: int, acked: set[int]) -> None:
        """What the failover left out is what was committed after ``upto``: all of that, and nothing else."""
        commits, rows = self.lost_at(other), self.rows(other).keys()
        kept = commits.keys()
        self.say(f"{lost.name} is back; {len(kept & acked)} acked rows are lost writes; merge them")
        written = self.acked().union(*(chain.unknown for chain in self.chains))  # some until their lease ended
        late = self.written_after(other, lost, upto) if upto else set()
        for what, found in (
            ("lost writes that nobody wrote", kept - written),
            ("lost, and in the table all the same", kept & rows),
            ("lost, though committed before the tables' time", {n for n in kept if commits[n] <= upto}),
            ("in the table, though committed after the tables' time", late & rows),
        ):
            if found:
                raise AssertionError(f"{what}: {sorted(found)[:10]}")

    def _source(self) -> Site:
        """The ACTIVE cluster, once no role change is under way."""
        found: list[Site] = []

        def one() -> bool:
            found[:] = [site for site in self.sites if site.json("readonly")["role"] == "ACTIVE"]
            return len(found) == 1

        until(one, "one ACTIVE cluster")
        return found[0]

    def finish_switchover(self) -> None:
        """Run it until it has happened; where nothing is unfinished, begin one."""
        source = self.active
        assert source is not None
        other = self.other(source)
        self.say(f"switchover from {source.name} to {other.name}")
        until(lambda: bool(source.json("switchover", other.name)), f"the switchover to {other.name}", 300)
        self.active = other

    def check_roles(self) -> None:
        """Never two that take writes, and never two under one epoch."""
        found = [(site.name, *self.role(site)) for site in self.sites]
        active = [(name, epoch) for name, role, epoch in found if role == "ACTIVE"]
        if len(active) > 1:
            raise AssertionError(f"both are ACTIVE: {found}")
        for name, epoch in active:
            if self.epochs.setdefault(epoch, name) != name:
                raise AssertionError(f"{name} is ACTIVE with epoch {epoch}, and so was {self.epochs[epoch]}")

    def role(self, site: Site) -> tuple[str, int]:
        """Its role and role epoch; "?" and 0 when they are not known now."""
        try:
            found = site.json("readonly")
        except AssertionError:
            return "?", 0
        return str(found["role"]), int(found["epoch"])

    def acked(self) -> set[int]:
        """Ids of the rows that were acked by now."""
        return {number for chain in self.chains for number in list(chain.acked)}

    def rows(self, site: Site) -> dict[int, int]:
        """A cluster's rows: the id that each is chained onto."""
        with site.connect() as cluster:
            return {row["id"]: row["after"] for row in cluster.read(TABLE).read_all().to_pylist()}

    def written_after(self, site: Site, origin: Site, upto: int) -> set[int]:
        """Ids of a cluster's current rows that another cluster committed after a time."""
        with site.connect() as cluster, origin.connect() as other, open_duckdb() as connection:
            cluster.reader.catalog.attach(connection, "changes", f"{TABLE}__changes")
            of = f"_op = 0 and _commit > {upto} and _origin = '{other.id}'"
            newest = "qualify row_number() over (partition by id order by _commit desc) = 1"
            found = connection.sql(f"select id from (select * from changes {newest}) where {of}").fetchall()
            return {int(number) for (number,) in found}

    def lost(self, site: Site) -> set[int]:
        """Ids of a cluster's lost writes that are kept."""
        return set(self.lost_at(site))

    def lost_at(self, site: Site) -> dict[int, int]:
        """The commit times of a cluster's lost writes that are kept, by id."""
        if not any(each["state"] == "kept" for each in site.json("lostwrites", "list")):
            return {}
        return {row["id"]: row["_commit"] for row in site.json("lostwrites", "show", TABLE)}

    def applied(self, site: Site) -> Counter[tuple[str, int, int]]:
        """How often each row of each frame is in a cluster's change log."""
        with site.connect() as cluster, open_duckdb() as connection:
            cluster.reader.catalog.attach(connection, "changes", f"{TABLE}__changes")
            found = connection.sql("select concat(_origin, _wal), _seq, id from changes where _op = 0").fetchall()
            return Counter((str(wal), int(sequence), int(number)) for wal, sequence, number in found)

    def verify(self) -> list[str]:
        """Stop writing, wait until both have the same, and look; what is wrong."""
        for chain in self.chains:
            chain.close()
        self.say("the writers have stopped; both clusters catch up")
        for site in self.sites:
            site.await_roles(*ROLES)
        try:
            until(lambda: self.rows(self.east) == self.rows(self.west) and not self._wrong(), "the same rows", 300)
        except TimeoutError as error:
            return [str(error), *self._wrong()]
        return []

    def _wrong(self) -> list[str]:
        wrong = []
        for site in self.sites:
            twice = Counter({n: count for (_, _, n), count in self.applied(site).items() if count > 1})
            wrong += [f"{site.name}: {each}" for each in problems(self.rows(site).items(), self.chains, twice)]
        return wrong


def main(arguments: list[str]) -> int:
    """Run; 1 when something is wrong."""
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    chosen = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="walship-soak-"))
    print(
        f"seed {chosen.seed}, in {folder}; again: python -m tests.soak --minutes {chosen.minutes} --seed {chosen.seed}"
    )
    with ExitStack() as stack:
        soak = Soak(folder, chosen.seed, stack)
        try:
            done = soak.run(chosen.minutes * 60)
            wrong = soak.verify()
        except (AssertionError, TimeoutError, ReplicationError) as error:
            done, wrong = Counter(), [f"{type(error).__name__}: {error}"]
        soak.say(", ".join(f"{count} {name}" for name, count in sorted(done.items())) or "it did not end")
        for each in wrong:
            soak.say(f"WRONG: {each}")
        rows = len(soak.acked())
    print(f"seed {chosen.seed}: " + ("something is wrong" if wrong else f"all {rows} acked rows are there, once"))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
