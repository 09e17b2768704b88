"""``enablereplication`` and ``disablereplication`` of several tables, some of which are refused."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import pyarrow as pa
import pytest
from rich.console import Console

from peer.client.contacts import Contacts
from peer.client.peering import Peering
from peer.tables.read import Reader
from replication.core.definition.alter import add_group
from replication.errors import PeerRefusedError, ReplicationError, RequestError
from replication.ledger.base import PatternRule, Peer, Rule
from replication.ledger.rules import Gap
from shell.cli.invocation import Invocation
from shell.cli.render import Printer
from shell.commands.enabling import EnableOptions, Enabling
from shell.commands.replication import disablereplication, enablereplication
from shell.main import run
from tests.sites import Site, table

pytestmark = pytest.mark.heavy

OLD = PatternRule("west", "ops.*", ("ops.tmp_*",), ("default",), False)


class Refusing(Contacts):
    """A peer that has tables of some names already."""

    refused: tuple[str, ...] = ()
    links = 0

    @contextmanager
    def link(self, peer: Peer) -> Iterator[Any]:
        def open_route(source: Any, expected: Any, *routes: Any) -> None:
            for route in routes:
                if route.remote_table in type(self).refused and not route.closed:
                    raise PeerRefusedError(f"west has another table named {route.remote_table}", "Choose another name")

        type(self).links += 1
        yield SimpleNamespace(open_route=open_route)


class Shell:
    """East with two tables, and what its commands print."""

    def __init__(self, east: Site) -> None:
        self.ledger = east.ledger
        self.peering = Peering(east.ledger, east.coordination, Refusing(east.ledger, east.config.tls))
        self.out, self.err = io.StringIO(), io.StringIO()

    def call(self, as_json: bool = False) -> Invocation:
        printer = Printer(as_json, Console(file=self.out, width=500), Console(file=self.err, width=500))

        @contextmanager
        def connect() -> Iterator[Any]:
            yield SimpleNamespace(peering=self.peering, ledger=self.ledger), printer

        return cast(Invocation, SimpleNamespace(connect=connect))

    def enable(self, *tables: str, as_json: bool = False, **options: Any) -> None:
        enablereplication(self.call(as_json), "west", list(tables), EnableOptions(**{"from_now": True} | options))


@pytest.fixture
def east(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    monkeypatch.setattr(Refusing, "refused", ("ops.b",))
    site, west = Site(tmp_path, "east"), Site(tmp_path, "west")
    site.send_to(west)
    for name in ("ops.a", "ops.b"):
        site.ledger.tables.create(table(name))
    yield Shell(site)
    site.close()
    west.close()


def test_one_refused_table_ends_no_rule_for_later_ones_and_is_named(east: Shell) -> None:
    with pytest.raises(RequestError, match=r"1 of 2 tables were left as they are: ops\.b"):
        east.enable("ops.*")
    assert east.peering.sent_to("west") == ["ops.a"]
    assert east.ledger.rules.pattern_rules() == [PatternRule("west", "ops.*")]
    assert "tables of ops.* that are made later go to west, too" in east.out.getvalue()
    assert "ops.b: west has another table named ops.b" in east.err.getvalue()


def test_many_tables_are_enabled_and_disabled_by_few_calls(east: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(150):
        east.ledger.tables.create(table(f"many.t{n}"))
    monkeypatch.setattr(Refusing, "links", 0)
    generation = east.ledger.rules.generation()
    east.enable("many.*")
    assert len(east.peering.sent_to("west")) == 150 and east.out.getvalue().count("goes to west from now on") == 150
    assert Refusing.links == 2 and east.ledger.rules.generation() == generation + 2, "some hundred tables with each"
    assert all(rule.every_group for rule in east.ledger.rules.to("west"))
    disablereplication(east.call(), "west", ["many.*"])
    assert Refusing.links == 3 and east.peering.sent_to("west") == []
    assert east.out.getvalue().count("does not go to west any more") == 150


def test_a_dropped_table_is_disabled_with_another_one_that_got_its_name(east: Shell) -> None:
    east.enable("ops.a")
    east.ledger.tables.drop(east.ledger.tables.get("ops.a").uuid)
    east.ledger.tables.create(table("ops.a"))
    east.enable("ops.a")
    disablereplication(east.call(), "west", ["ops.a"])
    assert not east.ledger.rules.to("west"), "status says of the dropped one that this ends what holds it"


def test_a_refused_table_among_many_leaves_the_others_with_their_properties(east: Shell) -> None:
    for n in range(3):
        east.ledger.tables.create(table(f"ops.c{n}"))
    with pytest.raises(RequestError, match=r"1 of 5 tables were left as they are: ops\.b"):
        east.enable("ops.*", with_properties=False)
    rules = east.ledger.rules.to("west")
    assert len(rules) == 4 and not any(rule.with_properties for rule in rules)


def test_the_rules_that_were_made_are_told_as_json_though_another_table_was_refused(east: Shell) -> None:
    with pytest.raises(RequestError):
        east.enable("ops.a", "ops.b", as_json=True)
    (rule,) = json.loads(east.out.getvalue())
    assert (rule["peer"], rule["table"], rule["remote_table"]) == ("west", "ops.a", "ops.a")
    assert rule["uuid"] == str(east.ledger.tables.get("ops.a").uuid)


def test_what_is_not_sent_is_told_with_its_locality_groups(east: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    gap, other = Gap(10**15, 2 * 10**15, 12), Gap(10**15, 2 * 10**15, 3)
    enable_all = Peering.enable_all

    def with_gaps(*args: Any) -> Iterator[tuple[str, list[Rule]]]:
        for name, made in enable_all(*args):
            assert isinstance(made, list)
            [rule] = made
            groups = (("a", gap), ("b", other), ("c", gap))
            yield name, [replace(rule, group=group, gaps=(each,)) for group, each in groups]

    monkeypatch.setattr(Peering, "enable_all", with_gaps)
    east.enable("ops.a")
    assert "ops.a, groups a, c: what was written between" in east.err.getvalue()
    assert "ops.a, group b: what was written between" in east.err.getvalue()


@pytest.mark.parametrize(
    ("refused", "tables", "options", "error"),
    [
        (("ops.a", "ops.b"), ("ops.*",), {}, RequestError),
        (("ops.a",), ("ops.*",), {"exclude": ["ops.b"]}, PeerRefusedError),
        ((), ("soon.*", "ops.a"), {"exclude": ["ops.a"]}, RequestError),
    ],
)
@pytest.mark.parametrize("before", [None, OLD])
def test_what_is_refused_as_a_whole_leaves_the_rule_that_there_was(
    east: Shell,
    monkeypatch: pytest.MonkeyPatch,
    before: PatternRule | None,
    refused: tuple[str, ...],
    tables: tuple[str, ...],
    options: dict[str, Any],
    error: type[ReplicationError],
) -> None:
    monkeypatch.setattr(Refusing, "refused", refused)
    if before is not None:
        before = replace(before, pattern=tables[0])
        east.ledger.rules.add_pattern_rule(before, east.ledger.terms.current())
    with pytest.raises(error):
        east.enable(*tables, as_json=True, **options)
    assert east.ledger.rules.pattern_rules() == ([] if before is None else [before])
    assert east.ledger.rules.all() == [] and east.out.getvalue() == ""


def test_tables_that_were_disabled_are_told_as_json_though_another_was_not(
    east: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Refusing, "refused", ())
    one = east.ledger.tables.get("ops.a").uuid
    east.ledger.tables.alter(one, lambda spec: add_group(spec, "more", [("of_more", pa.int32(), uuid4())], 5))
    east.enable("ops.a", "ops.b")
    east.out.truncate(east.out.seek(0))
    with pytest.raises(RequestError, match=r"left as they are: ops\.b"):
        disablereplication(east.call(as_json=True), "west", ["ops.*"], ["more"])
    told = [{"table": "ops.a", "peer": "west", "groups": ["more"], "knows": True}]
    assert json.loads(east.out.getvalue()) == told
    east.out.truncate(east.out.seek(0))
    disablereplication(east.call(as_json=True), "west", ["ops.a"])
    told[0]["groups"] = ["default"]
    assert json.loads(east.out.getvalue()) == told, "a list, also of one table"


@pytest.mark.parametrize("name", ["ops.a__changes", "ops.a__tombstones", "ops.a__latest", "walship.of_its_own"])
def test_a_system_table_is_refused(east: Shell, name: str) -> None:  # 004-28
    with pytest.raises(RequestError, match="own table and is not replicated"):
        east.enable(name)
    with pytest.raises(RequestError, match="is reserved for walship's own tables"):
        east.enable("ops.a", remote_table=name)
    assert east.ledger.rules.all() == []


def test_no_pattern_means_a_system_table(east: Shell) -> None:  # 004-28
    with pytest.raises(RequestError, match=r"no table matches ops\.a__\*"):
        east.enable("ops.a__*", once=True)
    assert east.ledger.rules.all() == []


@pytest.mark.parametrize("verb", ["enablereplication", "disablereplication"])
@pytest.mark.parametrize("excluded", ["ops.[secret", "ops.tmp *"])
def test_what_is_to_be_left_out_is_a_pattern_that_can_match(
    verb: str, excluded: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([verb, "-t", "ops.*", "--exclude", excluded, "west"]) == RequestError.exit_code
    assert excluded in capsys.readouterr().err


def test_a_table_without_columns_is_told_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(tmp_path, "east")
    with closing(site), closing(Reader(site.config, site.ledger)) as reader:
        spec = replace(table("ops.bare"), columns=(), key=(), groups=())
        hosts = SimpleNamespace(hosts=lambda: {})
        cluster = SimpleNamespace(coordination=hosts, read=lambda _, columns: reader.read(spec, columns=columns))
        monkeypatch.setattr("shell.commands.enabling.keeps_tables", lambda _: True)
        enabling = Enabling(cast(Any, cluster), Printer(False), "west", (), EnableOptions())
        with pytest.raises(RequestError, match="ops.bare has no columns.*walship altertable ops.bare --add"):
            enabling._count(spec)
