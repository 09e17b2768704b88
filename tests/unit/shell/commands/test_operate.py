"""What ``status`` says of peers that are paused, slow, held, past their budget or lacking something for good."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from peer.status.at_peers import TableAtPeer
from peer.status.forecasts import DiskForecast, PeerForecast
from peer.status.sending import HeldAtPeer, PeerSending
from replication.errors import PeerRefusedError, RequestError
from replication.ledger.base import Gap
from shell.cli.render import Printer
from shell.commands.operate import for_each
from shell.status.peers import gap_text, show_forecasts, show_missing, show_sending

WELL = PeerSending("west", "sending", 0, 0, 0, None, "", ())
ROW = TableAtPeer(
    "west",
    "west:1",
    "ops.a",
    "default",
    "ops.a",
    "caught_up",
    files=1,
    open_files=1,
    needed=0,
    finished=0,
    landed=0,
    applied=0,
    lag_bytes=0,
    lag_s=0.0,
    last_error="",
    dropped=False,
    since=0,
    gaps=(),
    statuses=(),
)
NEAR = PeerForecast("west", 3, 3 << 20, 0, 0, 1, 4 << 20, 1024.0, 1024.0, "bootstrap")
DISK = DiskForecast("h0", 1 << 30, 0.0, None)


class Said:
    """A printer and what it printed."""

    def __init__(self) -> None:
        self.out, self.err = io.StringIO(), io.StringIO()
        self.printer = Printer(False, Console(file=self.out, width=500), Console(file=self.err, width=500))

    @property
    def text(self) -> str:
        return self.out.getvalue() + self.err.getvalue()


@pytest.fixture
def said() -> Said:
    return Said()


def test_a_peer_that_is_well_is_not_worth_a_line(said: Said) -> None:
    show_sending(said.printer, [WELL])
    show_missing(said.printer, [ROW])
    show_forecasts(said.printer, [replace(NEAR, local_files=0)], DISK)
    assert said.text == ""


def test_pauses_rates_retries_and_held_tables_are_told(said: Said) -> None:
    failing = replace(WELL, state="failing", retries=3, retries_total=9, next_try_s=1.5, last_error="down")
    show_sending(said.printer, [failing, replace(WELL, peer="north", state="paused", rate=1 << 20)])
    assert "sending to west: failed 3 times in a row, next try in 1.50 s: down" in said.text
    show_sending(said.printer, [replace(failing, retries=1, next_try_s=None, last_error="no receiver is known")])
    assert "sending to west: failed once, next try once that is over: no receiver is known" in said.text
    assert "sending to north: paused (walship resume north); at most 1.0 MiB/s" in said.text
    held = replace(WELL, state="held", retries_total=2, held=(HeldAtPeer("ops.a", "it was dropped there", 10**15),))
    show_sending(said.printer, [held])
    assert "tried again 2 times so far" in said.text and "ops.a is held for west since 2001" in said.text
    assert said.text.count("north") == 2


def test_what_is_lost_for_good_is_told_with_the_remedy(said: Said) -> None:
    gap = Gap(10**15, 2 * 10**15, 12)
    show_missing(said.printer, [replace(ROW, state="needs_bootstrap"), replace(ROW, table="ops.b", gaps=(gap,))])
    assert "ops.a NEEDS A BOOTSTRAP at west" in said.text and "walship bootstrap -t ops.a west" in said.text
    assert "ops.b, group default: what was written between 2001" in said.text and "(12 frames)" in said.text
    one = gap_text(Gap(0, 10**15, 1), "west")
    assert one.startswith("what was written before 2001") and "(1 frame)" in one


def test_forecasts_say_when_and_what_happens_then(said: Said) -> None:
    show_forecasts(said.printer, [NEAR], replace(DISK, growth=2048.0, full_s=7200.0))
    assert (
        "files not complete at west: 3 (3.0 MiB of 4.0 MiB), growing 1.0 KiB/s: past its budget in 17 min" in said.text
    )
    assert "then tables need a bootstrap" in said.text and "2.0 KiB/s are added: full in 2 h 00 min" in said.text
    show_forecasts(said.printer, [replace(NEAR, then="spill", stored_files=2, stored_bytes=1 << 20)], DISK)
    assert "nothing lands here" not in said.text
    show_forecasts(said.printer, [], replace(DISK, free=100 << 20, reserved_bytes=512 << 20))
    assert "100.0 MiB free, less than the reserve of 512.0 MiB: nothing lands here" in said.text
    show_forecasts(said.printer, [replace(NEAR, then="spill", stored_files=1, stored_bytes=1 << 20)], DISK)
    assert "in the store for west: 1 file (1.0 MiB)" in said.text
    assert "then files move to the store" in said.text and "in the store for west: 2 files (1.0 MiB)" in said.text
    show_forecasts(said.printer, [], replace(DISK, free=0, reserved_bytes=512 << 20, growth=2048.0, full_s=0.0))
    assert "0 B free, less than the reserve" in said.text and "full in 0" not in said.text


def test_a_store_that_takes_nothing_is_told_with_the_reason(said: Said) -> None:
    full = "the store at file:///store failed: OSError: [Errno 28] No space left on device"
    show_forecasts(said.printer, [replace(NEAR, local_bytes=9 << 20, then="spill", spill_error=full)], DISK)
    assert f"files for west cannot be moved to the store or back: {full}" in said.text
    assert "3 (9.0 MiB of 4.0 MiB): past its budget, then files move to the store" in said.text


def test_of_several_tables_what_fails_for_one_holds_up_no_other(said: Said) -> None:
    done = []

    def act(name: str) -> None:
        if name == "b":
            raise PeerRefusedError("west has another table named b", "Drop it")
        done.append(name)

    with pytest.raises(RequestError, match="1 of 3 tables were left as they are: b"):
        for_each(["a", "b", "c"], act, said.printer)
    assert done == ["a", "c"] and "b: west has another table named b. Drop it" in said.text
    with pytest.raises(PeerRefusedError):
        for_each(["b"], act, said.printer)
