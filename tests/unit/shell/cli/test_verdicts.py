"""Verdicts as verify prints them."""

import pytest

from peer.verify.verdict import Difference, Holding, Verdict
from shell.cli.render import Printer
from shell.cli.verdicts import show_verdicts
from shell.commands.trace import parse_key
from tests.tables_made import cell


def test_bytes_in_keys_are_shown_as_trace_takes_them(capfd):
    holdings = (Holding("east", 1, "a"), Holding("west", 0, "b"))
    found = Verdict("ops.c", *holdings, 0, 1, differences=(Difference({"row": b"\x00\\"}, "only in east"),))
    show_verdicts(Printer(as_json=False), [found], 20)
    assert r"only in east: row=\x00\\" in capfd.readouterr().out
    assert parse_key(cell("ops.c"), [r"\x00\\", "f", "q", ""])["row"] == b"\x00\\"


def test_what_holds_as_of_an_earlier_time_is_not_called_the_same_without_a_word(capfd):
    holdings = (Holding("east", 1, "a"), Holding("west", 1, "a"))
    for since, verdict, noted in ((5_000_000, "the same then", True), (1_000_000, "the same", False)):
        show_verdicts(Printer(as_json=False), [Verdict("ops.c", *holdings, 2_000_000)], 20, since)
        told = capfd.readouterr()
        assert f"{verdict}  " in told.out and ("Later writes are not compared" in told.err) == noted


def test_a_table_that_is_held_is_shown_with_the_cluster_and_the_reason(capfd):
    found = Verdict("ops.c", Holding("east", 1, "a"), Holding("west", 1, "a", held="its schema is odd"), 2_000_000)
    show_verdicts(Printer(as_json=False), [found], 20, since=5_000_000)
    told = capfd.readouterr().err
    assert "Later writes are not compared.\nops.c is held at west: its schema is odd\n" in told


@pytest.mark.parametrize(("differing", "told"), [(1, "1 key differs"), (2, "2 keys differ")])
def test_keys_that_differ_are_counted_in_words(capsys: pytest.CaptureFixture[str], differing: int, told: str) -> None:
    holdings = Holding("east", 1, "a"), Holding("west", 1, "b")
    show_verdicts(Printer(as_json=False), [Verdict("ops.t", *holdings, 0, differing=differing)], 20)
    assert told in capsys.readouterr().out
