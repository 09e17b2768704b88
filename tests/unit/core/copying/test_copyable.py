"""Copyable files, filters, differences, ranges: the decisions of a copy."""

from __future__ import annotations

import hashlib
import pickle
from typing import Any

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from replication.core.copying.attributes import FileAttributes
from replication.core.copying.configuration import CopyConfiguration, Existing, Grouping, parse_preserve
from replication.core.copying.copyable import CopyableFile
from replication.core.copying.difference import Decision, decide
from replication.core.copying.filters import FilterRule, Filters
from replication.core.copying.names import RelativePath
from replication.core.copying.ranges import file_digest, ranges_of
from replication.errors import RequestError, UnsafeNameError

ORIGIN = FileAttributes(RelativePath("a/b.csv"), 7, 5_000_000_000, "ann", "staff", 0o640, "md5:x")


def test_a_file_is_built_with_defaults_out_of_the_configuration() -> None:
    file = CopyableFile.build("file:///src", ORIGIN, CopyConfiguration())  # 000-8, 000-27
    assert (file.destination, file.file_set, file.permission, file.owner) == ("a/b.csv", "a", 0o640, "")
    assert file.timestamp_ns == 5_000_000_000
    everything = CopyConfiguration(preserve=parse_preserve("all"), grouping=Grouping.DATASET, block_size=4096)
    file = CopyableFile.build("file:///src", ORIGIN, everything, metadata={"table": "t"}, replication=2)
    assert (file.owner, file.group, file.file_set, file.replication, file.block_size) == ("ann", "staff", "", 2, 4096)


def test_a_copyable_file_travels_pickled_and_its_names_are_checked_again() -> None:
    file = CopyableFile.build("s3://b", ORIGIN, CopyConfiguration(), metadata={"a": "b"})  # 000-29
    travelling = pickle.dumps(file)
    assert pickle.loads(travelling) == file
    with pytest.raises(UnsafeNameError):
        pickle.loads(travelling.replace(b"a/b.csv", b"../.csv"))


def test_the_guid_is_the_same_for_the_same_origin_file_and_another_for_any_other() -> None:
    # 000-28
    file = CopyableFile.build("s3://b", ORIGIN, CopyConfiguration())
    wanted = hashlib.sha1(b"s3://b\0a/b.csv\x007\x005000000000\0md5:x").hexdigest()
    assert file.guid == wanted
    others = [{"size": 8}, {"timestamp_ns": 6}, {"path": RelativePath("c")}, {"checksum": "md5:y"}]
    origins = [FileAttributes(**({n: getattr(ORIGIN, n) for n in ORIGIN.__slots__} | other)) for other in others]
    guids = {CopyableFile.build("s3://b", origin, CopyConfiguration()).guid for origin in origins} | {wanted}
    assert len(guids) == 5
    assert CopyableFile.build("s3://b", ORIGIN, CopyConfiguration(), destination=RelativePath("z")).guid == wanted


@pytest.mark.parametrize(
    ("rules", "taken", "left"),
    [
        ("", "a/b.csv x", ""),
        ("+ *.csv", "a/b.csv", "a/b.txt"),
        ("- *.tmp", "a/b.csv", "a/b.tmp"),
        ("+ keep.tmp|- *.tmp", "a/keep.tmp b.csv", "a/b.tmp"),
        ("- build/", "src/x build", "build/x a/build/y"),
        ("- build", "src/x", "build/x a/build/y build"),
        ("- /build", "a/build/y", "build/x"),
        ("+ data/**/*.parquet|- **", "data/x.parquet data/a/b/x.parquet", "data/x.csv x.parquet"),
        (r"+ regex:\d{4}-\d\d/|- **", "2024-01/x", "a/x"),
        ("- [!a]*.csv", "a1.csv", "b1.csv"),
    ],
)
def test_the_first_rule_that_matches_decides(rules: str, taken: str, left: str) -> None:
    # 001-9, 001-13, 001-16
    made = tuple(FilterRule(text[0] == "+", text[2:]) for text in rules.split("|") if text)
    filters = Filters(made)
    for name, is_taken in [(n, True) for n in taken.split()] + [(n, False) for n in left.split()]:
        assert filters.takes(FileAttributes(RelativePath(name), 1)) is is_taken, name


def test_folders_are_entered_unless_all_below_is_excluded() -> None:
    filters = Filters((FilterRule(False, "tmp"), FilterRule(True, "*.csv"), FilterRule(False, "**")))
    assert not filters.enters(RelativePath("a/tmp"))
    assert filters.enters(RelativePath("a/b"))


def test_size_and_age_are_filtered() -> None:
    filters = Filters(size_min=2, size_max=4, newer_than_ns=10, older_than_ns=20)
    files = [(1, 15), (2, 15), (4, 15), (5, 15), (3, 9), (3, 21), (3, None)]
    taken = [filters.takes(FileAttributes(RelativePath("a"), size, time)) for size, time in files]
    assert taken == [False, True, True, False, False, False, True]


def test_a_pattern_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(RequestError):
        FilterRule(True, "regex:(")


@pytest.mark.parametrize(
    ("there", "given", "decision"),
    [
        (None, {}, Decision.NEW),
        ((7, 5), {}, Decision.SAME),
        ((8, 5), {}, Decision.CHANGED),
        ((7, 6), {}, Decision.CHANGED),
        ((7, 6), {"keeps_times": False}, Decision.SAME),
        ((7, 4), {"keeps_times": False}, Decision.CHANGED),
        ((7, 6), {"existing": Existing.UPDATE}, Decision.TARGET_IS_NEWER),
        ((8, 4), {"existing": Existing.UPDATE}, Decision.CHANGED),
        ((8, 4), {"existing": Existing.SKIP}, Decision.EXISTS),  # 001-24
        ((7, 5), {"existing": Existing.OVERWRITE}, Decision.CHANGED),
        ((7, 5), {"same_content": False}, Decision.CHANGED),
        ((7, 9), {"same_content": True}, Decision.SAME),
    ],
)
def test_what_is_copied_over_what(there: tuple[int, int] | None, given: dict[str, Any], decision: Decision) -> None:
    before = FileAttributes(RelativePath("a"), there[0], there[1] * 1_000_000_000) if there else None
    options = {"existing": Existing.CHANGED, "keeps_times": True, "precision_ns": 1_000_000_000} | given
    assert decide(ORIGIN, before, options.pop("existing"), **options) is decision


@given(st.integers(0, 10_000), st.integers(1, 3000))
def test_ranges_tile_a_file_and_none_is_empty_but_that_of_an_empty_file(size: int, range_bytes: int) -> None:
    parts = ranges_of(size, range_bytes)  # 000-38
    assert [part.begin for part in parts] == [0, *(part.end for part in parts[:-1])]
    assert parts[-1].end == size
    assert all(0 < part.size <= range_bytes for part in parts) or size == 0


def test_the_digest_of_a_small_file_is_what_b3sum_prints() -> None:
    printed = "6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85"  # of "abc"
    assert file_digest([blake3(b"abc").digest()]) == printed
    assert file_digest([b"a", b"b"]) != file_digest([b"b", b"a"])


def test_what_can_be_preserved_is_named_or_lettered() -> None:
    assert parse_preserve("tp") == parse_preserve("permissions,times") == {"times", "permissions"}
    assert parse_preserve("rb") == {"replication", "block-size"}
    assert parse_preserve("none") == frozenset()
    with pytest.raises(RequestError):
        parse_preserve("colour")
