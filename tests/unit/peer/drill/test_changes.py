"""SQL of probes is split and taken apart as it was written."""

from __future__ import annotations

import pytest

from peer.drill.changes import parse_change, split_statements
from replication.errors import RequestError


def test_statements_are_split_with_the_comments_before_them() -> None:
    text = "-- one; é\nselect ';' as a; /* two; */ select $$;$$, \"x;y\";;\n-- no more\n"
    assert split_statements(text) == ["-- one; é\nselect ';' as a;", ' /* two; */ select $$;$$, "x;y";']
    assert split_statements(" -- nothing\n ; ") == []


@pytest.mark.parametrize(
    ("statement", "verb", "target", "alias", "others", "where"),
    [
        ("update t set a = 1", "update", ("t",), "t", "", ""),
        ("UPDATE ops.t AS o SET a = 1 WHERE b = 'where x'", "update", ("ops", "t"), "o", "", "b = 'where x'"),
        ("update t set a = (select 1 from u where true) where b", "update", ("t",), "t", "", "b"),
        ("update t set a = b is distinct from c", "update", ("t",), "t", "", ""),
        ("update t set a = u.a from u where t.k = u.k", "update", ("t",), "t", "u", "t.k = u.k"),
        ("delete from walship.ops.t;", "delete", ("walship", "ops", "t"), "t", "", ""),
        ("delete from t d using u, v where d.k = u.k", "delete", ("t",), "d", "u, v", "d.k = u.k"),
        ("delete from t where k in (1, 2) -- from here\n", "delete", ("t",), "t", "", "k in (1, 2)"),
        ('insert into "a.b"."c""d" select * from x', "insert", ("a.b", 'c"d'), '"c""d"', "x", ""),
        ("with q as (select 1) insert into t select * from q", "insert", ("t",), "t", "q", ""),
        ("truncate table ops.t", "truncate", ("ops", "t"), "t", "", ""),
        ("update été set é = 1 where é = 2", "update", ("été",), "été", "", "é = 2"),
    ],
)
def test_the_parts_of_a_change_are_found(
    statement: str, verb: str, target: tuple[str, ...], alias: str, others: str, where: str
) -> None:
    found = parse_change(statement)
    assert (found.verb, found.target, found.alias, found.others, found.where) == (verb, target, alias, others, where)
    assert not found.returns and parse_change(statement + " returning *").returns


def test_text_without_a_change_is_refused() -> None:
    with pytest.raises(RequestError, match="no changed table"):
        parse_change("select 1")
