"""What ``failover --at`` takes, and what ``lostwrites export`` says."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer

from peer.failover.failback import FailbackPlan
from peer.failover.failover import FailedOver, FailoverPlan
from peer.failover.loss import Loss
from peer.failover.lost_writes import LostWrite
from peer.failover.role_change import RoleChange
from peer.failover.switchover import SwitchedOver, SwitchoverPlan
from replication.core.clock import moment_text
from replication.errors import ConfigError, CorruptFrameError, RequestError, StepFailedError, UnknownTableError
from shell.cli.invocation import Invocation
from shell.cli.render import Printer
from shell.commands.failover import (
    FailoverOptions,
    _moment,
    failback,
    failover,
    lostwrites_discard,
    lostwrites_export,
    lostwrites_list,
    lostwrites_merge,
    lostwrites_show,
    switchover,
)


@pytest.mark.parametrize(
    ("text", "micros"),
    [
        ("2026-01-31T12:00:00Z", 1_769_860_800_000_000),
        ("2026-01-31T12:00:00", 1_769_860_800_000_000),
        ("1769860800000000", 1_769_860_800_000_000),
        ("9999-12-31T23:59:59Z", 253_402_300_799_000_000),
    ],
)
def test_a_time_is_a_text_or_microseconds(text: str, micros: int) -> None:
    assert _moment(text) == micros
    assert moment_text(micros).startswith(text[:10] if "T" in text else "2026-01-31")


@pytest.mark.parametrize(
    "text",
    ["noon", "0", "-5", "1769860800", "20260131", "253402300800000000", "999999999999999999", "9" * 5000],
)
def test_what_is_not_a_time_up_to_the_year_9999_is_refused_and_seconds_are_not_taken_for_1970(text: str) -> None:
    with pytest.raises(RequestError, match="is not a time") as refused:
        _moment(text)
    assert "microseconds since 1970" in refused.value.hint


def test_a_failover_that_names_the_lost_cluster_is_not_told_to_make_that_one_active(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @contextmanager
    def connect() -> Iterator[Any]:
        yield SimpleNamespace(name="west"), Printer(True)

    with pytest.raises(RequestError, match="on the cluster that takes over, and this is west") as refused:
        failover(cast(Invocation, SimpleNamespace(connect=connect)), "east", FailoverOptions())
    assert refused.value.hint.startswith(
        "If east is lost: walship --cluster west failover west. If east is to take over"
    )


def test_lost_writes_that_cannot_be_exported_say_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def connect() -> Iterator[Any]:
        yield SimpleNamespace(), Printer(True)

    monkeypatch.setattr("peer.failover.lost_writes.lost_writes", lambda *_: [])
    monkeypatch.setattr("peer.failover.lost_writes.rows_of", lambda *_: [pa.RecordBatch.from_pydict({"a": [1]})])
    file = tmp_path / "missing" / "lost.parquet"
    with pytest.raises(RequestError, match=r"lost\.parquet cannot be written: No such file"):
        lostwrites_export(cast(Invocation, SimpleNamespace(connect=connect)), "ops.t", file)
    file.parent.mkdir()
    lostwrites_export(cast(Invocation, SimpleNamespace(connect=connect)), "ops.t", file)
    assert pq.read_table(file).to_pylist() == [{"a": 1}]

    def damaged(*_: object) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"a": [1]})
        if file.exists():
            raise CorruptFrameError("a copy is damaged")

    file.unlink()
    monkeypatch.setattr("peer.failover.lost_writes.rows_of", damaged)
    with pytest.raises(CorruptFrameError):
        lostwrites_export(cast(Invocation, SimpleNamespace(connect=connect)), "ops.t", file)
    assert not file.exists(), "what is not whole could be taken for all of them"


def test_lost_writes_of_a_table_that_was_mistyped_are_not_shown_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(name: str) -> None:
        raise UnknownTableError(f"no table {name}")

    @contextmanager
    def connect() -> Iterator[Any]:
        yield SimpleNamespace(table=unknown), Printer(True)

    monkeypatch.setattr("peer.failover.lost_writes.lost_writes", lambda *_: [])
    monkeypatch.setattr("peer.failover.lost_writes.rows_of", lambda *_: [])
    with pytest.raises(UnknownTableError):
        lostwrites_show(cast(Invocation, SimpleNamespace(connect=connect)), "ops.typo")


def test_rows_of_lost_writes_are_shown_under_their_own_names_and_have_the_same_fields_in_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"_op": 0, "an_id": 1}, {"_op": 0, "an_id": 2, "new": 3}]
    monkeypatch.setattr("peer.failover.lost_writes.lost_writes", lambda *_: [])
    monkeypatch.setattr(
        "peer.failover.lost_writes.rows_of", lambda *_: [pa.RecordBatch.from_pylist([row]) for row in rows]
    )
    lostwrites_show(commanding(), "ops.t")
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["_op", "an_id", "new"],
        ["0", "1", "NULL"],
        ["0", "2", "3"],
    ]
    lostwrites_show(commanding(as_json=True), "ops.t")
    assert json.loads(capsys.readouterr().out) == [{**rows[0], "new": None}, rows[1]]


def test_lost_writes_are_shown_frame_by_frame_however_many_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []

    def frames(*_: object) -> Iterator[pa.RecordBatch]:
        drawn.clear()
        for number in range(50):
            drawn.append(number)
            yield pa.RecordBatch.from_pydict({"id": [number]})

    class First(Printer):
        def rows(self, rows: Any, *_: object, **__: object) -> None:
            assert next(iter(rows)) == {"id": 0} and drawn == [0], "of the others none is in memory"

    @contextmanager
    def connect() -> Iterator[Any]:
        yield SimpleNamespace(), First(False)

    monkeypatch.setattr("peer.failover.lost_writes.lost_writes", lambda *_: [])
    monkeypatch.setattr("peer.failover.lost_writes.rows_of", frames)
    lostwrites_show(cast(Invocation, SimpleNamespace(connect=connect)), "ops.t")


def test_lost_writes_from_before_and_after_a_column_was_made_wider_are_exported_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = pa.RecordBatch.from_pydict({"id": pa.array([1], pa.int32())})
    after = pa.RecordBatch.from_pydict({"id": pa.array([1 << 40], pa.int64()), "more": ["x"]})
    monkeypatch.setattr("peer.failover.lost_writes.lost_writes", lambda *_: [])
    monkeypatch.setattr("peer.failover.lost_writes.rows_of", lambda *_: iter([before, after]))
    lostwrites_export(commanding(), "ops.t", tmp_path / "lost.parquet")
    found = pq.read_table(tmp_path / "lost.parquet").to_pylist()
    assert found == [{"id": 1, "more": None}, {"id": 1 << 40, "more": "x"}]


@pytest.mark.parametrize(("was", "now"), [(1, "a"), ((1 << 53) + 1, 0.5)])
def test_lost_writes_of_two_columns_of_one_name_are_not_exported_but_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, was: int, now: object
) -> None:
    dropped, anew = pa.RecordBatch.from_pydict({"x": [was]}), pa.RecordBatch.from_pydict({"x": [now]})
    monkeypatch.setattr("peer.failover.lost_writes.lost_writes", lambda *_: [])
    monkeypatch.setattr("peer.failover.lost_writes.rows_of", lambda *_: iter([dropped, anew]))
    with pytest.raises(RequestError, match="ops.t have columns of one name and different types: ") as refused:
        lostwrites_export(commanding(), "ops.t", tmp_path / "lost.parquet")
    assert refused.value.hint == "Print them: walship lostwrites show ops.t --json"
    assert not list(tmp_path.iterdir())


def test_a_role_change_goes_on_though_its_steps_have_no_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def switching(context: RoleChange, to: str) -> SwitchedOver:
        context.report("west gets ready")
        done.append(to)
        return SwitchedOver("east", to, 2, 0.1, 0.2)

    def no_reader(*_: object) -> None:
        raise BrokenPipeError

    @contextmanager
    def connect() -> Iterator[Any]:
        yield SimpleNamespace(), Printer(False)

    monkeypatch.setattr("peer.failover.switchover.switchover", switching)
    monkeypatch.setattr(Printer, "line", no_reader)
    with pytest.raises(BrokenPipeError):
        switchover(cast(Invocation, SimpleNamespace(connect=connect)), "west")
    assert done == ["west"]


def test_a_switchover_that_is_stopped_says_where_to_see_what_it_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    printer = Printer(False)

    def stopped(context: RoleChange, to: str) -> SwitchedOver:
        context.report("this cluster takes no more writes")
        raise KeyboardInterrupt

    @contextmanager
    def connect() -> Iterator[Any]:
        yield SimpleNamespace(), printer

    monkeypatch.setattr("peer.failover.switchover.switchover", stopped)
    with pytest.raises(KeyboardInterrupt):
        switchover(cast(Invocation, SimpleNamespace(connect=connect)), "west")
    assert printer.stopped() == "stopped: what it has begun goes on when it is run again; see walship ops list"


def commanding(*, as_json: bool = False) -> Invocation:
    """An invocation on a cluster that has nothing but its name."""

    @contextmanager
    def connect() -> Iterator[Any]:
        yield SimpleNamespace(name="west"), Printer(as_json)

    return cast(Invocation, SimpleNamespace(connect=connect))


class Change:
    """A role change with these stored steps."""

    hooks = SimpleNamespace(files=lambda: ())

    def __init__(self, *steps: str) -> None:
        self.steps = steps

    def __call__(self, *_: object) -> Change:
        return self

    def unfinished_steps(self) -> tuple[Any, ...]:
        return tuple(SimpleNamespace(describe=lambda step=step: step) for step in self.steps)


def hooks_that_others_may_write() -> tuple[Path, ...]:
    raise ConfigError("other users may write to hooks, so no hook is run", "chmod go-w hooks")


NO_LOSS = Loss((), 0, None)
PLANS: list[tuple[str, Callable[..., None], Callable[[tuple[str, ...]], Any]]] = [
    (
        "peer.failover.switchover.plan_switchover",
        lambda invocation: switchover(invocation, "west", plan=True),
        lambda refusals: SwitchoverPlan("east", "west", 2, ("step",), refusals, 0, 0.0, 0.3),
    ),
    (
        "peer.failover.failback.plan_failback",
        lambda invocation: failback(invocation, "west", plan=True),
        lambda refusals: FailbackPlan("east", "west", 2, ("step",), refusals, {}, 0, 0.3),
    ),
    (
        "peer.failover.failover.plan_failover",
        lambda invocation: failover(invocation, "west", FailoverOptions(plan=True)),
        lambda refusals: FailoverPlan("east", "west", 2, ("step",), refusals, 0, NO_LOSS, NO_LOSS, 0),
    ),
]


@pytest.mark.parametrize(("planning", "verb", "made"), PLANS, ids=["switchover", "failback", "failover"])
def test_a_plan_that_is_not_possible_now_exits_as_the_verb_would(
    planning: str,
    verb: Callable[..., None],
    made: Callable[[tuple[str, ...]], Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("peer.failover.role_change.RoleChange", Change())
    refusals: tuple[str, ...] = ()
    monkeypatch.setattr(planning, lambda *_, **__: made(refusals))
    verb(commanding())
    refusals = ("east is lost",)
    with pytest.raises(typer.Exit) as ended:
        verb(commanding())
    assert ended.value.exit_code == RequestError.exit_code == 4
    shown = capsys.readouterr().out.splitlines()
    assert shown.count("Not possible now: east is lost") == 1
    assert shown[-1].startswith(("0 B ", "No writes", "Recovery"))
    with pytest.raises(typer.Exit):
        verb(commanding(as_json=True))
    assert json.loads(capsys.readouterr().out)["refusals"] == ["east is lost"]
    loose = Change()
    loose.hooks = SimpleNamespace(files=hooks_that_others_may_write)
    monkeypatch.setattr("peer.failover.role_change.RoleChange", loose)
    for as_json in (False, True):
        with pytest.raises(ConfigError, match="no hook is run"):
            verb(commanding(as_json=as_json))
    monkeypatch.setattr("peer.failover.role_change.RoleChange", Change("step"))  # an interrupted one is tried
    with pytest.raises(typer.Exit) as ended:
        verb(commanding())
    assert ended.value.exit_code == StepFailedError.exit_code
    monkeypatch.setattr(planning, lambda *_, **__: replace(made(()), steps=()))
    capsys.readouterr()
    verb(commanding())
    assert capsys.readouterr().out == "Nothing to do: west took over from east already.\n"


@pytest.mark.parametrize("answer", ["", "n\n"])
def test_a_failover_that_nobody_confirms_is_refused_and_names_the_option(
    answer: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = FailoverPlan("east", "west", 2, ("step",), (), 0, NO_LOSS, NO_LOSS, 0)
    monkeypatch.setattr("peer.failover.role_change.RoleChange", Change())
    monkeypatch.setattr("peer.failover.failover.plan_failover", lambda *_, **__: plan)
    monkeypatch.setattr("sys.stdin", io.StringIO(answer))
    with pytest.raises(RequestError) as refused:
        failover(commanding(), "west", FailoverOptions())
    assert str(refused.value) == "nothing was changed. Confirm, or give --yes"
    assert "Make west ACTIVE in place of east?" in capsys.readouterr().err


def test_a_switchover_is_not_cancelled_by_asking_for_a_plan() -> None:
    with pytest.raises(RequestError, match="exclude each other"):
        switchover(commanding(), plan=True, cancel=True)


@pytest.mark.parametrize("everything", ["all_landed", "incomplete"])
def test_an_earlier_time_is_not_passed_over_for_everything_that_landed(everything: str) -> None:
    with pytest.raises(RequestError, match="--at and --.* exclude each other"):
        failover(commanding(), "west", FailoverOptions(at="2026-01-31T12:00:00Z", **{everything: True}))


def test_the_loss_that_is_accepted_counts_for_the_plan_too_and_does_not_stop_a_failover_half_way(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = FailoverPlan("east", "west", 2, ("step",), (), 0, Loss((), 1, 40.0), NO_LOSS, 0)
    done: list[FailoverPlan] = []

    def fail_over(_: object, planned: FailoverPlan) -> FailedOver:
        done.append(planned)
        return FailedOver("east", "west", 2, 0, planned.loss, 0.1, 0.2)

    monkeypatch.setattr("peer.failover.role_change.RoleChange", Change())
    monkeypatch.setattr("peer.failover.failover.plan_failover", lambda *_, **__: plan)
    monkeypatch.setattr("peer.failover.failover.failover", fail_over)
    for has_begun in (False, True):
        monkeypatch.setattr("peer.failover.failover.is_begun", lambda *_, now=has_begun: now)
        for options in (FailoverOptions(plan=True, loss_under_s=30.0), FailoverOptions(yes=True, loss_under_s=30.0)):
            with nullcontext() if has_begun else pytest.raises(RequestError, match="not known to be under 30 s"):
                failover(commanding(), "west", options)
            assert capsys.readouterr().out.startswith("1. step" if options.plan else "west is" if has_begun else "")
    assert done == [plan]
    ahead = FailoverPlan("east", "west", 2, ("step",), (), 0, Loss((), 1 << 52, None), NO_LOSS, 0)
    monkeypatch.setattr("peer.failover.failover.plan_failover", lambda *_, **__: ahead)
    monkeypatch.setattr("peer.failover.failover.is_begun", lambda *_: False)
    with pytest.raises(
        RequestError, match="by its clock, which is ahead of the one here, is not known here"
    ) as refused:
        failover(commanding(), "west", FailoverOptions(yes=True, loss_under_s=30.0))
    assert refused.value.hint == "Leave --if-loss-under out, and decide when asked", "no larger one helps"


def test_where_no_lost_writes_are_kept_there_is_nothing_to_confirm_or_to_replay(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @contextmanager
    def connect() -> Iterator[Any]:
        yield SimpleNamespace(), Printer(False)

    monkeypatch.setattr("peer.failover.lost_writes.lost_writes", lambda *_: [])
    monkeypatch.setattr("peer.failover.lost_writes.merge", lambda *_: 0)
    for verb in (lostwrites_discard, lostwrites_merge):
        verb(cast(Invocation, SimpleNamespace(connect=connect)))
        assert capsys.readouterr().out == "no lost writes\n"


def test_a_list_of_lost_writes_says_of_which_the_rows_cannot_be_read_here(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    read = LostWrite("h0/1:9", "ops.t", 3, 7, "east -> west, epoch 2", "kept", "/kept/1")
    unread = replace(read, frame="h1/2:9", rows=0, unreadable="The copy /kept/2 cannot be read")
    monkeypatch.setattr("peer.failover.lost_writes.lost_writes", lambda *_: [read, unread])
    lostwrites_list(commanding())
    shown = capsys.readouterr()
    assert "1 frame cannot be read here" in shown.err and "The copy /kept/2 cannot be read" in shown.err
    assert shown.out.splitlines()[2].split()[:3] == ["h1/2:9", "ops.t", "-"]
    lostwrites_list(commanding(as_json=True))
    assert [row["rows"] for row in json.loads(capsys.readouterr().out)] == [3, None]
