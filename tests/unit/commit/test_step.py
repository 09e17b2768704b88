"""Steps are data: what is stored is what is run, and what is unknown here is refused with the remedy."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest

from replication.commit.sequence import SequenceBuilder
from replication.commit.step import CommitStep, step_from_json, step_to_json, step_type
from replication.errors import VersionError
from tests.contract.commit_steps import Put
from tests.contract.ledger_stores import memory


class _Idle(CommitStep[Any]):
    def verify(self, context: Any) -> bool:
        return True

    def execute(self, context: Any) -> None:
        return

    def describe(self) -> str:
        return "nothing"


@dataclass(frozen=True)
class Inner:
    table: UUID
    epoch: int


@step_type("test.rich", version=2)
@dataclass(frozen=True)
class Rich(_Idle):
    inner: Inner
    names: tuple[str, ...]
    hash: bytes
    note: str | None = None


@step_type("test.rich")
@dataclass(frozen=True)
class RichBefore(_Idle):
    names: tuple[str, ...]


RICH = Rich(Inner(UUID(int=7), 3), ("a", "ü\n"), b"\x00\x01".hex().encode())


def test_a_step_is_read_back_as_it_was_with_kind_and_version() -> None:  # 002-9
    text = step_to_json(RICH)
    assert "\n" not in text and json.loads(text)["version"] == 2
    assert step_from_json(text) == RICH


def test_a_step_stored_before_an_upgrade_is_read_by_the_class_of_its_version() -> None:
    before = RichBefore(("a",))
    assert step_from_json(step_to_json(before)) == before


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"version": 9}, "kind 'test.rich', version 9: this walship knows version 1, 2.*Upgrade walship"),
        ({"kind": "test.future"}, "kind 'test.future', version 2: this walship does not know that kind.*Upgrade"),
        ({"later": 1}, "does not fit: later: .*Upgrade"),
        ({"names": 5}, "does not fit: names: .*Upgrade"),
    ],
)
def test_an_unknown_step_is_refused_naming_the_upgrade(changes: dict[str, object], said: str) -> None:
    with pytest.raises(VersionError, match=said):
        step_from_json(json.dumps(json.loads(step_to_json(RICH)) | changes))


def test_what_is_no_step_is_refused() -> None:
    for text in ("", "[]", "{}", "null", '{"kind":"test.rich"}'):
        with pytest.raises(VersionError, match="not a commit step"):
            step_from_json(text)


def test_a_plan_describes_its_steps_in_plain_words_and_changes_nothing() -> None:
    with memory() as stores:
        builder = SequenceBuilder(stores.ledger.steps, "east", "publish").add(Put("a", "1"), Put("b", "2"))
        assert builder.describe() == ["put 1 at a", "put 2 at b"]
        assert builder.build().steps == (Put("a", "1"), Put("b", "2"))
        assert stores.ledger.steps.sequences() == []
