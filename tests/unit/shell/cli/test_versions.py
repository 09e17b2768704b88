"""Versions of a key as trace prints them."""

from peer.tables.trace import Trace, Version
from shell.cli.render import Printer
from shell.cli.versions import show_trace


def test_a_trace_shows_the_timestamps_that_decide_where_they_are_not_the_commit_times(capfd):
    def version(timestamp, winner, value):
        rest = {
            "row": 0,
            "path": ("e",),
            "other_paths": (),
            "applied": None,
            "stored_in": "changes",
            "is_winner": winner,
        }
        return Version("a", value is None, timestamp, 5_000_000, "e", "h0/1", 1, **rest, values={"v": value})

    plain_one, other = version(5_000_000, True, "x"), version(4_000_000, False, None)
    show_trace(Printer(as_json=False), Trace("e", "ops.c", {}, (plain_one,), ()), values=False)
    assert "timestamp" not in capfd.readouterr().out
    for stamp, shown in ((4_000_000, "1970-01-01 00:00:04.000Z"), (2**63 - 1, str(2**63 - 1))):
        found = Trace("e", "ops.c", {}, (version(stamp, True, None), other), ())
        show_trace(Printer(as_json=False), found, values=True)
        told = capfd.readouterr().out
        assert "timestamp" in told and shown in told and "v=NULL" in told
