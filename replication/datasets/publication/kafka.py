"""Events for a topic of Kafka; needs ``walship[kafka]``. Events of a file set keep their order."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from replication.errors import ConfigError
from replication.log import redact

_TIMEOUT_MS = 30_000
_POLL_S = 0.1
_HINT = "Put it into a variable of the environment, and write ?sasl.username=NAME&sasl.password=$VARIABLE"
_SECRET = re.compile(r"password|secret|\.pem$|oauthbearer\.config")


class KafkaEvents:
    """Sends events to a topic; they are taken once all replicas in sync have them.

    Args:
        url: ``kafka://HOST:PORT,HOST:PORT/TOPIC``. Behind ``?`` may be settings of librdkafka; a value ``$NAME`` stands
            for a variable of the environment, as a secret has to, so that it is written nowhere.

    Raises:
        ConfigError: there is no topic or a secret in it, a setting is wrong, or confluent-kafka is not installed.
    """

    def __init__(self, url: str) -> None:
        try:
            parts = urlsplit(url)
        except ValueError:  # of brackets
            raise ConfigError(f"{redact(url)} is no URL of Kafka", "Write kafka://HOST:PORT/TOPIC") from None
        self._topic = parts.path.strip("/")
        if "@" in parts.netloc:
            raise ConfigError("a URL of Kafka holds no user or password", _HINT)
        self._shown = f"kafka://{parts.netloc}/{self._topic}"
        if not parts.netloc or not self._topic or "/" in self._topic:
            raise ConfigError(f"{self._shown} names no topic of a broker", "Write kafka://HOST:PORT/TOPIC")
        settings = {name: _value(name, text) for name, text in parse_qsl(parts.query)}
        try:
            kafka: Any = __import__("confluent_kafka")
        except ImportError:
            raise ConfigError("events for Kafka need confluent-kafka", "pip install 'walship[kafka]'") from None
        given = {"bootstrap.servers": parts.netloc, "enable.idempotence": True, "delivery.timeout.ms": _TIMEOUT_MS}
        self._error = kafka.KafkaException
        try:
            self._producer = kafka.Producer({"log_level": 0, **settings, **given})
        except kafka.KafkaException as error:
            raise ConfigError(f"{self._shown}: {error.args[0].str()}", "Correct its settings") from None
        except TypeError as error:  # a callback, which cannot be a text
            raise ConfigError(f"{self._shown}: {error}", "Leave that setting out") from None

    def send(self, events: Sequence[str]) -> None:
        """Send them; each was taken, or failed, on return."""
        failed: list[str] = []

        def delivered(error: Any, _: Any) -> None:
            if error is not None:
                failed.append(error.str())

        try:
            for event in events:
                self._produce(event, delivered)
            self._producer.flush()
        except self._error as error:
            failed.append(error.args[0].str())
        if failed:
            raise OSError(f"{self._shown} did not take {len(failed)} of {len(events)} events: {failed[0]}")

    def _produce(self, event: str, delivered: Any) -> None:
        key = json.loads(event).get("file_set", "")
        while True:
            try:
                self._producer.produce(self._topic, event.encode(), key=key.encode(), on_delivery=delivered)
                return
            except BufferError:  # many wait already; each is taken or fails within the timeout
                self._producer.poll(_POLL_S)


def _value(name: str, text: str) -> str:
    if not text.startswith("$"):
        if _SECRET.search(name):
            raise ConfigError(f"{name} would be written down with the URL", _HINT)
        return text
    if text[1:] not in os.environ:
        raise ConfigError(f"{name} is to be {text}, which is not set in the environment", f"Set {text[1:]}")
    return os.environ[text[1:]]
