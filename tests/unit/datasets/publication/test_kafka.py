"""Events for Kafka, sent to the brokers that librdkafka has for tests: real ones on the wire, in this process."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from replication.datasets.publication.events import open_events
from replication.datasets.stores.local import LocalStore
from replication.errors import ConfigError
from tests.copying import job, read_tree, write_tree

kafka: Any = pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed: walship[kafka]")
pytestmark = pytest.mark.heavy
FILES = {"a/1": b"one", "a/2": b"two", "b/3": b"three"}
TOPIC = "copies"


@pytest.fixture(scope="module")
def brokers() -> Iterator[str]:
    owner = kafka.Producer({"test.mock.num.brokers": 2, "bootstrap.servers": "", "log_level": 0})
    found = owner.list_topics(timeout=20).brokers.values()
    yield ",".join(f"{each.host}:{each.port}" for each in found)
    del owner


def taken(brokers: str, count: int, topic: str = TOPIC) -> list[tuple[str, dict[str, Any]]]:
    """So many events of a topic, with their keys."""
    consumer = kafka.Consumer({"bootstrap.servers": brokers, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    found, until = [], time.monotonic() + 60
    while len(found) < count and time.monotonic() < until:
        if (message := consumer.poll(0.5)) is not None and message.error() is None:
            found.append((message.key().decode(), json.loads(message.value())))
    consumer.close()
    return found


def test_each_file_and_each_file_set_has_one_event_in_order(brokers: str, tmp_path: Path) -> None:
    write_tree(tmp_path / "src", FILES)  # 000-13, 000-43
    made = job(LocalStore(str(tmp_path / "src")), LocalStore(str(tmp_path / "dst")))
    made.events = open_events(f"kafka://{brokers}/{TOPIC}")
    assert made.run().failed == 0
    found = taken(brokers, 5)
    assert sorted((key, event.get("path", "")) for key, event in found) == [
        ("a", ""),
        ("a", "a/1"),
        ("a", "a/2"),
        ("b", ""),
        ("b", "b/3"),
    ]
    for name in "ab":
        kinds = [event["event"] for key, event in found if key == name]
        assert kinds[-1] == "file_set_published", "after its files"


def test_events_that_no_broker_took_are_sent_by_the_next_run(
    brokers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tree(tmp_path / "src", FILES)  # 000-36
    first = job(LocalStore(str(tmp_path / "src")), LocalStore(str(tmp_path / "dst")))
    with monkeypatch.context() as impatient:
        impatient.setattr("replication.datasets.publication.kafka._TIMEOUT_MS", 300)
        first.events = open_events(f"kafka://127.0.0.1:1/{TOPIC}")
        assert any("did not take" in reason for reason in first.run().failures.values())
    assert read_tree(tmp_path / "dst") == FILES, "the files are in place already"
    second = job(LocalStore(str(tmp_path / "src")), LocalStore(str(tmp_path / "dst")))
    second.events = open_events(f"kafka://{brokers}/later")
    assert second.run().failed == 0
    paths = [event.get("path", "") for _, event in taken(brokers, 5, "later")]
    assert sorted(paths) == ["", "", *FILES]


def test_settings_come_from_the_address_and_secrets_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", "secret")  # 000-17, 001-28
    login = "security.protocol=sasl_plaintext&sasl.mechanism=PLAIN&sasl.username=ann&sasl.password=$KAFKA_PASSWORD"
    sink: Any = open_events(f"kafka://127.0.0.1:1/{TOPIC}?{login}")
    assert "secret" not in sink._shown and "ann" not in sink._shown
    for wrong in ("no.such.setting=1", "sasl.password=$NOT_SET", "error_cb=print"):
        with pytest.raises(ConfigError) as refused:
            open_events(f"kafka://127.0.0.1:1/{TOPIC}?{wrong}")
        assert "secret" not in str(refused.value)
    for written_down in (f"127.0.0.1:1/{TOPIC}?sasl.password=hush", f"ann:hush@127.0.0.1:1/{TOPIC}"):
        with pytest.raises(ConfigError) as refused:
            open_events(f"kafka://{written_down}")
        assert "hush" not in str(refused.value) and "$VARIABLE" in refused.value.hint
