"""What is printed, for people and as JSON."""

import io
import json
import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from uuid import UUID

import pytest
from rich.console import Console

from replication.core.ids import ClusterId
from replication.errors import NoWorkerError
from shell.cli.render import Printer, bytes_text, moment_text, plain, rigid_columns, seconds_text, to_json


def printer(as_json=False):
    out, err = io.StringIO(), io.StringIO()
    return Printer(as_json, Console(file=out, width=200), Console(file=err, width=200)), out, err


@dataclass(frozen=True)
class Row:
    name: str
    at: datetime


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 30, "5.0 GiB"), (3 << 50, "3072.0 TiB")]
)
def test_bytes(count, text):
    assert bytes_text(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0.40 s"), (42, "42 s"), (185, "3 min 05 s"), (7805, "2 h 10 min")]
)
def test_seconds(seconds, text):
    assert seconds_text(seconds) == text


def test_a_moment_is_utc_and_none_is_a_dash():
    assert moment_text(1_356_998_400_123_000) == "2013-01-01 00:00:00.123Z"
    assert moment_text(0) == "-"


def test_every_kind_of_value_becomes_json():
    value = {
        "row": Row("a", datetime(2013, 1, 1, tzinfo=UTC)),
        "id": ClusterId("east", UUID(int=1)),
        "decimal": Decimal("1.50"),
        "bytes": b"\x00\xff",
        "nan": math.nan,
        "inf": -math.inf,
        "list": (1, None, True),
    }
    assert json.loads(to_json(value)) == {
        "row": {"name": "a", "at": "2013-01-01T00:00:00+00:00"},
        "id": "east:00000000-0000-0000-0000-000000000001",
        "decimal": "1.50",
        "bytes": r"\x00\xff",
        "nan": "nan",
        "inf": "-inf",
        "list": [1, None, True],
    }


def test_keys_that_are_no_text_become_text():
    assert plain({ClusterId("e", UUID(int=2)): 1}) == {"e:00000000-0000-0000-0000-000000000002": 1}


def test_json_is_one_value_and_says_every_field_even_of_columns_not_shown():
    told, out, _ = printer(as_json=True)
    told.header("east")
    told.rows([{"a": 1, "hidden": 2}], ("a",))
    assert json.loads(out.getvalue()) == [{"a": 1, "hidden": 2}]


def test_a_table_leaves_out_columns_that_are_empty_everywhere():
    told, out, _ = printer()
    told.rows([{"a": 1, "b": ""}, {"a": 2, "b": None}], ("a", "b"))
    assert "b" not in out.getvalue()


def test_text_in_a_value_is_never_taken_for_markup():
    told, out, _ = printer()
    told.rows([{"a": "[red]x[/]"}], ("a",))
    assert "[red]x[/]" in out.getvalue()


def test_an_error_is_one_line_and_a_hint_on_standard_error():
    told, out, err = printer()
    told.error(NoWorkerError("no worker is alive", "Start one"))
    assert err.getvalue() == "error no worker is alive\nhint  Start one\n"
    assert out.getvalue() == ""


def test_an_error_as_json_has_its_exit_code():
    told, _, err = printer(as_json=True)
    told.error(NoWorkerError("no worker is alive", "Start one"))
    assert json.loads(err.getvalue())["exit_code"] == NoWorkerError.exit_code


def test_a_table_too_wide_for_the_terminal_wraps_its_wide_columns_only():
    assert rigid_columns([5, 24, 60], 200) == {0, 1, 2}
    assert rigid_columns([5, 24, 60], 60) == {0, 1}
    assert rigid_columns([5, 24, 60], 40) == {0}
    assert rigid_columns([50, 50], 40) == frozenset()
    out = io.StringIO()
    row = {"peer": "west", "since": "2013-01-01 00:00:00.123Z", "error": "connection refused by the peer " * 3}
    Printer(False, Console(file=out, width=60)).rows([row], ("peer", "since", "error"))
    head, first, *more = out.getvalue().splitlines()
    assert "2013-01-01 00:00:00.123Z" in first and len(more) > 2
    assert all(line.startswith(" " * 30) for line in more)


def test_rows_of_more_columns_than_a_narrow_terminal_has_room_for_are_shown_line_by_line():
    out = io.StringIO()
    rows = [
        {"peer": "west", "since": "2013-01-01 00:00:00.123Z", "state": "[red]", "n": n, "m": "m" * 50} for n in (1, 2)
    ]
    Printer(False, Console(file=out, width=30)).rows(rows, tuple(rows[0]))
    first, second = out.getvalue().split("\n\n")
    lines = ["peer   west", "since  2013-01-01 00:00:00.123Z", "state  [red]", "n      1", f"m      {'m' * 50}"]
    assert first.splitlines() == lines and second == "\n".join(lines).replace("  1", "  2") + "\n"


NAMED = "2001:db8:a:b::1 :x: [red]"


def test_values_that_look_like_emoji_or_markup_are_printed_as_they_are(capsys):
    Printer(as_json=True).rows([{"k": NAMED}], ("k",))
    assert json.loads(capsys.readouterr().out) == [{"k": NAMED}]
    people = Printer(as_json=False)
    people.rows([{"k": NAMED}], ("k",))
    people.line(NAMED)
    people.value({"k": NAMED})
    assert capsys.readouterr().out.count(NAMED) == 3


def test_numbers_are_shown_with_all_their_digits():
    shown, out, _ = printer()
    shown.rows([{"v": 1234567.25}, {"v": 40.639751}], ("v",))
    assert "1234567.25" in out.getvalue() and "40.639751" in out.getvalue()


HOSTILE = "t\x1b[2J\x1b]0;title\x07\r\x9b31m\x7f\u202eevil [red]m[/]"


def test_control_characters_that_another_cluster_wrote_do_nothing_to_a_terminal():  # issue 23
    shown, out, err = printer()
    shown.line(HOSTILE)
    shown.rows([{"why": HOSTILE, "n": 1}], ("why", "n"))
    shown.value({HOSTILE: HOSTILE})
    shown.header(HOSTILE, HOSTILE)
    shown.note(HOSTILE)
    shown.error(NoWorkerError(HOSTILE, HOSTILE))
    said = out.getvalue() + err.getvalue()
    assert all(each.isprintable() or each == "\n" for each in said), repr(said)
    assert said.count(r"t\x1b[2J\x1b]0;title\x07\x0d\u009b31m\u007f\u202eevil [red]m[/]") == 9


def test_json_has_the_same_text_and_no_control_characters():
    value = {"why": f"ü\n{HOSTILE}"}
    assert json.loads(to_json(value)) == value and to_json(value).isprintable()


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_json_is_json_in_every_encoding(encoding):
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="backslashreplace")
    Printer(True, Console(file=out)).value({"k": "ü日"})
    out.seek(0)
    assert json.loads(out.buffer.read()) == {"k": "ü日"}


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("rows", [1, 3])
def test_a_table_that_fits_is_printed_as_rich_would(terminal, rows, monkeypatch):
    shown = [
        {"name": f"ops.t[{n}]", "größe": n * 10**n, "note": "日本" * n, "on": n % 2 == 0, "gone": None, "x": 0.5}
        for n in range(rows)
    ]
    columns = ("name", "größe", "note", "on", "gone", "x")

    def printed():
        out = io.StringIO()
        Printer(False, Console(file=out, width=100, force_terminal=terminal)).rows(shown, columns)
        return out.getvalue()

    found = printed()
    monkeypatch.setattr(Printer, "_fits", lambda *_: False)
    expected = printed()
    assert re.sub(r"\x1b\[[0-9;]*m", "", found) == re.sub(r"\x1b\[[0-9;]*m", "", expected)
    assert ("\x1b[1m" in found) == ("\x1b[1m" in expected) == terminal


def test_rows_of_a_user_are_shown_under_their_own_names_with_every_column():
    shown, out, _ = printer()
    shown.rows([{"my_col": 1, "none": None, "text": "-"}], ["my_col", "none", "text"], verbatim=True)
    lines = out.getvalue().splitlines()
    assert lines[0].split() == ["my_col", "none", "text"] and lines[1].split() == ["1", "NULL", "-"]


class NoReader(io.StringIO):
    def write(self, text):
        raise BrokenPipeError


def test_what_is_printed_before_the_result_stops_no_command_whose_reader_has_gone(monkeypatch):
    monkeypatch.setattr("sys.stdout", NoReader())
    monkeypatch.setattr("sys.stderr", NoReader())
    shown = Printer(False)
    shown.header("east", "east/walship.toml")
    shown.progress("step 1 of 4")
    shown.note("beside the result")
    with pytest.raises(BrokenPipeError):
        shown.line("the result")


def test_names_of_a_query_are_shown_as_they_are_in_a_wide_table_too():
    out = io.StringIO()
    names = ("legs[i]", "from[/a]", "\x1b[2J")
    Printer(False, Console(file=out, width=40)).rows([dict.fromkeys(names, "x" * 30)], names, verbatim=True)
    assert out.getvalue().splitlines()[0].split() == ["legs[i]", "from[/a]", "\\x1b[2J"]


@pytest.mark.parametrize("as_json", [False, True])
def test_many_rows_are_printed_as_they_come(as_json, monkeypatch):
    monkeypatch.setattr("shell.cli.render._ROWS_AT_ONCE", 2)
    shown, out, _ = printer(as_json)
    missing = []

    def rows():
        for n in range(9):
            if n > 5:  # two blocks are looked at before the first is printed
                missing.extend(each for each in range(n - 5) if f"row {each}" not in out.getvalue())
            yield {"name": f"row {n}" + "." * n, "left": None if n < 7 else n}

    shown.rows(rows())
    assert not missing
    if as_json:
        assert [each["left"] for each in json.loads(out.getvalue())] == [*[None] * 7, 7, 8]
    else:
        lines = out.getvalue().splitlines()
        assert lines[0].split() == ["name", "left"]  # also a column that has nothing yet
        assert [line.split() for line in lines[1:]] == [
            ["row", f"{n}{'.' * n}", "-" if n < 7 else str(n)] for n in range(9)
        ]


def test_many_rows_on_a_narrow_terminal_have_one_head_and_a_line_between_them(monkeypatch):
    monkeypatch.setattr("shell.cli.render._ROWS_AT_ONCE", 2)
    out = io.StringIO()
    Printer(False, Console(file=out, width=30)).rows({"a": str(n), "b": "x y " * 10} for n in range(5))
    assert [line.split()[0] for line in out.getvalue().splitlines() if line[0] != " "] == ["a", *"01234"]
    out = io.StringIO()
    names = [f"name{n}" for n in range(9)]
    Printer(False, Console(file=out, width=30)).rows(dict.fromkeys(names, "x" * 30) for _ in range(5))
    assert out.getvalue().splitlines().count("") == 4
