"""Views kept by instants show what views made anew from listings show, after any interleaving of actions."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given
from hypothesis import strategies as st

from peer.timeline.stores.memory import MemoryViews, SpillableViews
from peer.timeline.views import Views
from replication.core.timeline.instants import Action, Event
from replication.core.timeline.view import FileSlice
from replication.errors import RequestError
from tests.budget import examples
from tests.datasets_made import OUT, Dataset

PARTITIONS = ("", "p", "p/q")
STEPS = st.sampled_from(
    ["publish", "replace", "crash", "finish", "undo", "undo", "restore", "clean", "clean half", "ask", "restart"]
)


class Run:
    """One dataset, the view that is kept, and what an independent reading of the timeline says."""

    def __init__(self, data: st.DataObject, folder: Path) -> None:
        self.data = data
        self.folder = folder
        self.made = 0
        self.dataset = Dataset({"old@0": 1, "p/old@0": 1, "p/older@0": 1})
        self.before = frozenset(self.dataset.files)
        self.spills = data.draw(st.booleans())
        self.view = self.open()

    def open(self) -> Views:
        store = SpillableViews(self.folder / "view", 2000 if self.spills else 1 << 30)
        return Views(self.dataset.timeline, store, self.dataset.listings())

    def pick(self, found: list[int]) -> int:
        return self.data.draw(st.sampled_from(found))

    def events(self) -> list[Event]:
        return list(self.dataset.timeline.following(0))

    def seen(self, time: int | None = None) -> set[str]:
        """The files that can be seen as of an instant, by the instants that are done and not undone."""
        done = [event.instant for event in self.events() if event.instant.is_effective]
        undone = {time for instant in done for time in instant.changes.undone}
        found = set(self.before)
        for instant in done:
            if instant.is_pending or instant.completed in undone or (time is not None and instant.completed > time):
                continue
            found |= {version.path for version in instant.changes.adds}
            found -= {path for _, path in instant.changes.replaces}
        gone = {path for instant in done for _, path in instant.changes.removes}
        return found - gone

    def step(self, step: str) -> None:
        dataset, state = self.dataset, self.dataset.timeline.state()
        done = [e.instant for e in self.events() if not e.instant.is_pending and e.instant.changes.adds]
        commits = [i for i in state.pending.values() if i.changes.adds]
        deletes = [i for i in state.pending.values() if i.is_effective]
        if step in ("publish", "replace", "crash"):
            self.made += 1
            partition = self.data.draw(st.sampled_from(PARTITIONS))
            prefix = f"{partition}/" if partition else ""
            new = [
                f"{prefix}{name}@{self.made}" for name in self.data.draw(st.sets(st.sampled_from("abc"), min_size=1))
            ]
            taken = {path for i in commits for _, path in i.changes.replaces}
            candidates = sorted(self.seen() - taken)
            old = self.data.draw(st.sets(st.sampled_from(candidates))) if candidates and step != "publish" else set()
            action = self.data.draw(st.sampled_from([Action.COPY, Action.FOLD]))
            written = self.data.draw(st.integers(0, len(new))) if step == "crash" else None
            instant, changes = dataset.begin(*new, replaces=tuple(old), action=action, written=written)
            if step != "crash":
                dataset.timeline.complete(instant, changes)
        elif step == "finish" and (commits or deletes):
            instant = {i.time: i for i in (*commits, *deletes)}[self.pick([i.time for i in (*commits, *deletes)])]
            dataset.files |= {version.path: 1 for version in instant.changes.adds}
            for _, path in instant.changes.removes:
                dataset.files.pop(path, None)
            dataset.timeline.complete(instant, instant.changes)
        elif step == "undo" and (done or commits):
            self.undo([self.pick([i.completed or i.time for i in (*done, *commits)])], Action.ROLLBACK)
        elif step == "restore" and done:
            time = self.pick([i.completed for i in done])
            later = [i.completed for i in done if i.completed > time]
            self.undo(later, Action.RESTORE) if later else None
        elif step.startswith("clean"):
            self.clean(finish=step == "clean")
        elif step == "ask":
            self.view.sync()
            self.view.latest(OUT, self.data.draw(st.sampled_from(PARTITIONS)))
        elif step == "restart":
            self.view.close()
            self.view = self.open()

    def undo(self, times: list[int], action: Action) -> None:
        try:
            self.dataset.undo(*times, action=action, finish=self.data.draw(st.booleans()))
        except RequestError:
            return  # undone before, or what it had replaced was cleaned

    def clean(self, *, finish: bool) -> None:
        fresh = self.fresh()
        gone = [v for p in PARTITIONS for v in fresh.versions(OUT, p) if v.removed]
        if gone:
            chosen = self.data.draw(st.lists(st.sampled_from(gone), unique=True, min_size=1))
            self.dataset.clean(*(v.path for v in chosen), retained=max(v.removed for v in chosen), finish=finish)

    def fresh(self) -> Views:
        made = Views(self.dataset.timeline, MemoryViews(), self.dataset.listings())
        made.sync()
        return made

    def check(self) -> None:
        self.view.sync()
        fresh = self.fresh()
        state = self.dataset.timeline.state()
        times = [e.instant.completed for e in self.events() if e.instant.completed >= state.floors.get(OUT, 0)]
        for partition in PARTITIONS:
            assert self.view.latest(OUT, partition) == fresh.latest(OUT, partition)
            assert self.view.all(OUT, partition) == fresh.all(OUT, partition)
            for time in filter(None, times):
                assert self.view.as_of(OUT, partition, time) == fresh.as_of(OUT, partition, time)
        for time in filter(None, times):
            shown = {p for partition in PARTITIONS for p in paths(self.view.as_of(OUT, partition, time))}
            assert shown <= self.seen(time)
        everything = {v.path for p in PARTITIONS for v in self.view.versions(OUT, p) if not v.removed}
        assert everything == self.seen()


def paths(found: list[FileSlice]) -> list[str]:
    return [each.whole.path for each in found if each.whole is not None]


@examples(60)
@given(st.data())
def test_a_view_kept_by_instants_equals_one_made_from_listings(data: st.DataObject) -> None:  # 003-15
    with TemporaryDirectory() as folder:
        run = Run(data, Path(folder))
        run.dataset.publish("p/a@0")
        for step in data.draw(st.lists(STEPS, min_size=1, max_size=14)):
            run.step(step)
            if data.draw(st.booleans()):
                run.check()
        run.check()
        run.view.close()
