"""Whatever another process sends or writes ends in a value or in an error of the project's tree (``tests/fuzz``)."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.budget import examples
from tests.fuzz.decoders import DECODERS
from tests.fuzz.edits import KINDS, Edit, edited
from tests.fuzz.trial import corpus, try_one

EDIT = st.builds(Edit, st.sampled_from(KINDS), st.integers(0, 1 << 16), st.integers(0, 1 << 16))


@pytest.mark.parametrize("name", DECODERS)
def test_true_bytes_decode(name: str) -> None:
    assert all(try_one(name, raw) for raw in DECODERS[name].examples)


@pytest.mark.parametrize(("name", "file"), [pytest.param(n, f, id=f"{n}-{f.stem}") for n, f in corpus()])
def test_what_once_ended_in_another_error_is_refused_by_type(name: str, file: Path) -> None:
    try_one(name, file.read_bytes())


@pytest.mark.parametrize("name", DECODERS)
@given(st.data())
@examples(60)
def test_edited_bytes_end_in_a_value_or_an_error_of_the_project(name: str, data: st.DataObject) -> None:
    decoder = DECODERS[name]
    raw = data.draw(st.sampled_from(decoder.examples) | st.binary(max_size=300))
    raw = edited(raw, data.draw(st.lists(EDIT, max_size=4)), decoder.examples)
    if decoder.mend is not None and data.draw(st.booleans()):
        raw = decoder.mend(raw)
    try_one(name, raw)
