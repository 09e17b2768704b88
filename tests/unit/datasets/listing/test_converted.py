"""Listing of files that are converted: the target has them by other names than the source."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from replication.core.copying.filters import FilterRule, Filters
from replication.datasets.preview import compared
from tests.copying import copied, read_tree, write_tree


def test_what_was_converted_is_in_the_source_for_delete_and_for_check(tmp_path: Path) -> None:
    source, target = tmp_path / "src", tmp_path / "dst"
    write_tree(source, {"x.txt": b"1", "a/y.txt": b"2", "a/left.out": b"3"})
    write_tree(target, {"gone.gz": b"", "a/gone.gz": b"", "b/gone.gz": b"", "a/left.out.gz": b"kept"})
    made = copied(
        source,
        target,
        conversions=("gzip",),
        delete=True,
        filters=Filters((FilterRule(False, "left.out"),)),
    )
    kept = {"x.txt.gz", "a/y.txt.gz", "a/left.out.gz"}
    assert set(read_tree(target)) == kept
    assert compared(made).found == {"same": 2}
    again = copied(source, target, conversions=("gzip",), delete=True)
    assert set(read_tree(target)) == kept and again.progress.counts.deleted == 0
    write_tree(target, {"x.txt": b"not what the copy makes"})
    assert copied(source, target, conversions=("gzip",), delete=True).progress.counts.deleted == 1


def test_a_file_that_may_come_from_an_excluded_one_is_not_removed(tmp_path: Path) -> None:
    source, target = tmp_path / "src", tmp_path / "dst"
    write_tree(source, {"x.gz": gzip.compress(b"1")})
    write_tree(target, {"work.tmp": b"of work.tmp.gz", "a/work.tmp": b"", "gone": b"", "tmp/gone": b""})
    rules = Filters((FilterRule(False, "*.tmp.gz"), FilterRule(False, "tmp/")))
    counts = copied(source, target, conversions=("gunzip",), delete=True, filters=rules).progress.counts
    assert set(read_tree(target)) == {"x", "work.tmp", "a/work.tmp", "tmp/gone"}
    assert counts.deleted == 1 and counts.skipped == {"perhaps excluded": 2}


def test_a_file_that_is_converted_from_an_included_name_is_removed(tmp_path: Path) -> None:
    source, target = tmp_path / "src", tmp_path / "dst"
    write_tree(source, {"x.csv": b"1"})
    write_tree(target, {"gone.csv.gz": b"", "other.gz": b"", "other": b""})
    only = Filters((FilterRule(True, "*.csv"), FilterRule(False, "**")))
    counts = copied(source, target, conversions=("gzip",), delete=True, filters=only).progress.counts
    assert set(read_tree(target)) == {"x.csv.gz", "other.gz", "other"}
    assert counts.deleted == 1 and counts.skipped == {}


def test_where_a_link_of_the_source_would_go_nothing_is_removed(tmp_path: Path) -> None:
    source, target = tmp_path / "src", tmp_path / "dst"
    write_tree(source, {"x": b"1"})
    (source / "link").symlink_to("x")
    write_tree(target, {"link.gz": b"copied when links were followed"})
    copied(source, target, conversions=("gzip",), delete=True)
    assert set(read_tree(target)) == {"x.gz", "link.gz"}


@pytest.mark.parametrize("given", [{"conversions": ("gzip",)}, {"versions": True}])
def test_a_file_whose_new_name_is_too_long_hides_no_other(tmp_path: Path, given: dict[str, Any]) -> None:
    source, target = tmp_path / "src", tmp_path / "dst"
    write_tree(source, {"n" * 254: b"1", "a/" + "n" * 254: b"1", "a/b/x": b"2", "a/y": b"3", "z": b"4"})
    counts = copied(source, target, **given).progress.counts
    assert sorted(counts.failures) == ["a/" + "n" * 254, "n" * 254]
    assert all("longer than 255 bytes" in reason for reason in counts.failures.values())
    assert len(read_tree(target)) == 3


def test_of_two_files_with_one_destination_the_second_fails_alone(tmp_path: Path) -> None:
    source, target = tmp_path / "src", tmp_path / "dst"
    write_tree(source, {"x.csv": b"1", "x.csv.gz": gzip.compress(b"1"), "y": b"2"})
    for _ in range(2):
        counts = copied(source, target, conversions=("gunzip",)).progress.counts
        ((path, reason),) = counts.failures.items()
        assert path in ("x.csv", "x.csv.gz") and reason == "another file of the source becomes x.csv, too: exclude one"
        assert read_tree(target) == {"x.csv": b"1", "y": b"2"}
    one = Filters((FilterRule(False, path),))
    counts = copied(source, target, conversions=("gunzip",), filters=one).progress.counts
    assert counts.failures == {}
