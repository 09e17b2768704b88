"""Splits SQL into statements, and finds the parts of an INSERT, UPDATE or DELETE that a fork carries out. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import duckdb

from replication.errors import RequestError

_PART = rb'(?:"(?:[^"]|"")+"|[A-Za-z_\x80-\xff][\w$\x80-\xff]*)'
_NAME = re.compile(rb"\s*(" + _PART + rb"(?:\s*\.\s*" + _PART + rb")*)")
_ALIAS = re.compile(rb"\s*(?:as\s+)?(" + _PART + rb")", re.IGNORECASE)
_BEFORE = {"insert": ("into",), "update": (), "delete": ("from",), "truncate": ("table",), "merge": ("into",)}
_CLAUSES = ("from", "using", "where", "returning")


@dataclass(frozen=True, slots=True)
class TableChange:
    """A statement that changes the rows of one table; all texts are as they were written.

    Attributes:
        verb: insert, update, delete, truncate or merge.
        target: the parts of the table's name.
        before: what comes before the name.
        after: what comes after it, its alias included.
        prefix: ``WITH …`` before the verb, or "".
        alias: what the statement calls the table, quoted.
        others: the tables of FROM or USING, or "".
        where: its condition, or "".
        returns: whether it has RETURNING.
    """

    verb: str
    target: tuple[str, ...]
    before: str
    after: str
    prefix: str
    alias: str
    others: str
    where: str
    returns: bool


@dataclass(frozen=True, slots=True)
class _Token:
    begin: int
    word: str  # small letters; "" for a comment


def parse_change(statement: str) -> TableChange:
    """Return the parts of a statement that DuckDB has parsed as a change of rows.

    Raises:
        RequestError: the table's name was not found.
    """
    data = _without_comments(statement)
    top = list(_top_level(data))
    verb = next((token for token in top if token.word in _BEFORE), None)
    if verb is None:
        raise RequestError(f"no changed table was found in {statement[:80]!r}", "Write INSERT, UPDATE or DELETE")
    at = verb.begin + len(verb.word)
    opening = next((t for t in top if t.begin >= at and t.word in _BEFORE[verb.word]), None)
    at = at if opening is None else opening.begin + len(opening.word)
    named = _NAME.match(data, at)
    if named is None:
        raise RequestError(f"no changed table was found in {statement[:80]!r}", "Name it after the verb")
    clauses = _clauses(data, [token for token in top if token.begin >= named.end(1)])
    parts = re.findall(_PART, named[1])
    alias = _alias(data, named.end(1), verb.word) or parts[-1]
    return TableChange(
        verb.word,
        tuple(_plain(part.decode()) for part in parts),
        data[: named.start(1)].decode(),
        data[named.end(1) :].decode(),
        data[: verb.begin].decode().strip(),
        alias.decode(),
        clauses.get("from", "") or clauses.get("using", ""),
        clauses.get("where", ""),
        "returning" in clauses,
    )


def split_statements(text: str) -> list[str]:
    """The statements of a text, each with the comments before it."""
    data = text.encode()
    tokens = duckdb.tokenize(text)
    ends = [begin + 1 for begin, _ in tokens if data[begin : begin + 1] == b";"]
    bounds = [0, *ends, len(data)]
    found = [data[begin:end].decode() for begin, end in zip(bounds, bounds[1:], strict=False)]
    return [each for each in found if _without_comments(each).strip(b" \t\r\n;")]


def _clauses(data: bytes, tokens: list[_Token]) -> dict[str, str]:
    """The texts of the clauses that follow the table's name, by their first word."""
    found: list[_Token] = []
    for before, token in zip([None, *tokens], tokens, strict=False):
        is_first = token.word in _CLAUSES and all(token.word != other.word for other in found)
        if is_first and (before is None or before.word != "distinct"):  # IS DISTINCT FROM
            if token.word in ("from", "using") and any(other.word == "where" for other in found):
                continue
            found.append(token)
    ends = [*(token.begin for token in found[1:]), len(data)]
    return {
        token.word: data[token.begin + len(token.word) : end].decode().strip().rstrip(";").strip()
        for token, end in zip(found, ends, strict=False)
    }


def _alias(data: bytes, at: int, verb: str) -> bytes:
    found = _ALIAS.match(data, at)
    is_clause = found is not None and found[1].lower() in (b"set", *(word.encode() for word in _CLAUSES))
    return b"" if found is None or is_clause or verb not in ("update", "delete") else found[1]


def _top_level(data: bytes) -> Iterator[_Token]:
    """The tokens that are in no parentheses."""
    depth = 0
    tokens = [begin for begin, _ in duckdb.tokenize(data.decode())]
    for begin, end in zip(tokens, [*tokens[1:], len(data)], strict=False):
        text = data[begin:end].strip()
        if text[:1] in b"([" and text:
            depth += 1
        elif text[:1] in b")]" and text:
            depth -= 1
        elif not depth:
            yield _Token(begin, text.decode().lower())


def _without_comments(statement: str) -> bytes:
    """The statement in UTF-8, with blanks in place of comments."""
    data = bytearray(statement.encode())
    tokens = duckdb.tokenize(statement)
    ends = [*(begin for begin, _ in tokens[1:]), len(data)]
    for (begin, kind), end in zip(tokens, ends, strict=False):
        if kind == duckdb.token_type.comment:
            data[begin:end] = b" " * (end - begin)
    return bytes(data)


def _plain(part: str) -> str:
    return part[1:-1].replace('""', '"') if part.startswith('"') else part
