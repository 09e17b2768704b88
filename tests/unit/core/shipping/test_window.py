"""The shipping window: what is sent next, and what comes back."""

from __future__ import annotations

from uuid import UUID

import pytest

from replication.core.coverage import Ranges
from replication.core.ids import ClusterId, FileId
from replication.core.shipping.window import Window

FILE = FileId(ClusterId("east", UUID(int=1)), "h0", 1)


@pytest.fixture
def window() -> Window:
    made = Window(100)
    made.follow(FILE, 256, Ranges.of((256, 300)))
    return made


def test_goes_on_behind_what_is_durable_or_on_its_way(window: Window) -> None:
    assert window.files[FILE].gap(1000) == (300, 1000)
    window.sent(FILE, 300, 350, 50)
    assert window.files[FILE].gap(1000) == (350, 1000)
    assert window.files[FILE].tiling_begin(350) == 256


def test_holds_back_when_full_but_lets_one_large_message_through(window: Window) -> None:
    assert window.admits(5000)
    window.sent(FILE, 300, 380, 80)
    assert window.admits(20) and not window.admits(21)
    window.acked(FILE, [(300, 380)])
    assert window.admits(5000)


def test_a_lost_stream_sends_again_what_was_not_acked(window: Window) -> None:
    window.sent(FILE, 300, 350, 50)
    window.sent(FILE, 350, 400, 50)
    window.acked(FILE, [(350, 400)])
    window.lost()
    assert window.files[FILE].gap(1000) == (300, 350)
    assert window.in_flight_bytes == 0


def test_a_hole_puts_everything_behind_it_back_even_what_was_acked(window: Window) -> None:
    window.sent(FILE, 300, 350, 50)
    window.acked(FILE, [(300, 350)])
    window.sent(FILE, 350, 400, 50)
    window.rewind(FILE, 280)
    assert window.files[FILE].gap(1000) == (280, 1000)
    assert window.in_flight_bytes == 0


def test_what_is_withheld_leaves_a_hole_and_a_new_tiling(window: Window) -> None:
    window.withhold(FILE, 300, 320)
    assert window.files[FILE].gap(1000) == (320, 1000)
    assert window.files[FILE].tiling_begin(320) == 320
    window.sent(FILE, 320, 400, 80)
    window.acked(FILE, [(320, 400)])
    assert not window.files[FILE].finished(400)
    window.leave(FILE)
    window.follow(FILE, 256, Ranges.of((256, 300), (320, 400)))
    assert window.files[FILE].gap(400) == (300, 320)


def test_a_file_is_settled_when_all_that_is_not_withheld_is_durable(window: Window) -> None:
    window.leave(FILE)
    window.follow(FILE, 256, Ranges.of((256, 310)), Ranges.of((300, 320)))
    assert window.files[FILE].gap(1000) == (320, 1000)
    window.sent(FILE, 320, 400, 80)
    assert window.files[FILE].is_durable_or_withheld(320) and not window.files[FILE].is_durable_or_withheld(400)
    window.acked(FILE, [(320, 400)])
    assert window.files[FILE].is_durable_or_withheld(400) and not window.files[FILE].finished(400)


def test_replies_about_unknown_files_are_no_matter(window: Window) -> None:
    other = FileId(FILE.cluster, "h0", 2)
    window.acked(other, [(0, 10)])
    window.returned(other, 0, 10)
    window.rewind(other, 0)
    assert list(window.files) == [FILE]
