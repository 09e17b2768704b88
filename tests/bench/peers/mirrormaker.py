"""Kafka MirrorMaker 2 between two single-broker KRaft clusters on loopback; fetches and batches larger than by default.

Records carry the rows' bytes, keyed, into 4 partitions, sent by librdkafka with ``acks=all``. Kafka's default does not
fsync: an acknowledged record is in the page cache. Catch-up counts from the first record at the target, since
MirrorMaker's start is mostly a JVM's.
"""

from __future__ import annotations

import base64
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from tests.bench.measure import Figure, seeded_rows
from tests.bench.peers.jvm import PACKAGES, class_path
from tests.bench.peers.peer import (
    PROBES,
    PeerFailedError,
    PeerMissingError,
    cells,
    execute,
    figures,
    folder,
    free_port,
    stop,
    until,
)

PARTITIONS, TASKS = 4, 2
_ONE_REPLICA = ("checkpoints.topic", "heartbeats.topic", "offset-syncs.topic")
_ONE_REPLICA_STORES = ("offset.storage", "status.storage", "config.storage")


def run(count: int) -> list[Figure]:
    """Records waiting when MirrorMaker starts, then as many while it runs, then single ones."""
    try:
        import confluent_kafka  # noqa: F401
    except ImportError:
        raise PeerMissingError(
            f"there is no confluent_kafka: install the Python package confluent-kafka, and {PACKAGES}"
        ) from None
    data = cells(seeded_rows(count))
    with folder("mirrormaker") as home, ExitStack() as running:
        sites = _Sites(home, class_path("mirrormaker", home))
        for site in ("a", "b"):
            running.enter_context(sites.broker(site))
        sites.make_topics({"rows": PARTITIONS, "probes": 1})
        sites.produce(data)
        running.enter_context(sites.mirror_maker())
        first = until(lambda: sites.at_target("a.rows") > 0, "a record at MirrorMaker's target", 0.02)
        catch_up = until(lambda: sites.at_target("a.rows") >= count, "MirrorMaker's catch-up", 0.02) - first
        time.sleep(3)
        began = time.perf_counter()
        sending = threading.Thread(target=sites.produce, args=(data,), name="produce")
        sending.start()
        end_to_end = until(lambda: sites.at_target("a.rows") >= 2 * count, "all at MirrorMaker's target", 0.02) - began
        sending.join()
        lags = sites.lags()
    return figures("mirrormaker", count / end_to_end, count / catch_up, lags)


class _Sites:
    """Two brokers and MirrorMaker."""

    def __init__(self, home: Path, jars: str) -> None:
        self._home, self._jars = home, jars
        self._ports = {site: (free_port(), free_port()) for site in ("a", "b")}
        self._counter: Any = None

    def _java(self, heap: str, main: str, *arguments: str) -> list[str]:
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
        return ["java", f"-Xms{heap}", f"-Xmx{heap}", quiet, "-cp", self._jars, main, *arguments]

    def _address(self, site: str) -> str:
        return f"127.0.0.1:{self._ports[site][0]}"

    def _client(self, kind: str, site: str, **settings: object) -> Any:
        import confluent_kafka
        from confluent_kafka import admin

        made = admin.AdminClient if kind == "admin" else getattr(confluent_kafka, kind)
        if kind == "Consumer":
            settings = {"group.id": "bench", "enable.auto.commit": False, **settings}
        return made({"bootstrap.servers": self._address(site), "log_level": 0, **settings})

    @contextmanager
    def _process(self, name: str, command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
        with (self._home / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            yield process
        finally:
            stop(process)

    def _write(self, name: str, settings: dict[str, object]) -> str:
        path = self._home / f"{name}.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        return str(path)

    @contextmanager
    def broker(self, site: str) -> Iterator[None]:
        plain, controller = (f"127.0.0.1:{port}" for port in self._ports[site])
        settings = self._write(
            site,
            {
                "process.roles": "broker,controller",
                "node.id": 1,
                "controller.quorum.voters": f"1@{controller}",
                "listeners": f"PLAINTEXT://{plain},CONTROLLER://{controller}",
                "advertised.listeners": f"PLAINTEXT://{plain}",
                "controller.listener.names": "CONTROLLER",
                "inter.broker.listener.name": "PLAINTEXT",
                "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
                "log.dirs": self._home / site,
                "offsets.topic.replication.factor": 1,
                "offsets.topic.num.partitions": 5,
                "transaction.state.log.replication.factor": 1,
                "transaction.state.log.min.isr": 1,
                "group.initial.rebalance.delay.ms": 0,
                "auto.create.topics.enable": "false",
            },
        )
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        execute(*self._java("256m", "kafka.tools.StorageTool", "format", "-t", cluster, "-c", settings))
        with self._process(site, self._java("1g", "kafka.Kafka", settings)) as process:
            until(lambda: self._serves(site, process), f"Kafka broker {site}", 0.3, 60)
            yield

    def _serves(self, site: str, process: subprocess.Popen[bytes]) -> bool:
        from confluent_kafka import KafkaException

        if process.poll() is not None:
            said = (self._home / f"{site}.log").read_text(errors="replace")[-1500:]
            raise PeerFailedError(f"Kafka broker {site} ended: {said}")
        try:
            self._client("admin", site).list_topics(timeout=2)
        except KafkaException:
            return False
        return True

    @contextmanager
    def mirror_maker(self) -> Iterator[None]:
        settings: dict[str, object] = {
            "clusters": "a,b",
            "a.bootstrap.servers": self._address("a"),
            "b.bootstrap.servers": self._address("b"),
            "a->b.enabled": "true",
            "b->a.enabled": "false",
            "a->b.topics": "rows|probes",
            "tasks.max": TASKS,
            "replication.factor": 1,
            **{f"{topic}.replication.factor": 1 for topic in (*_ONE_REPLICA, *_ONE_REPLICA_STORES)},
            "offset.storage.partitions": 1,
            "status.storage.partitions": 1,
            "sync.topic.acls.enabled": "false",
            "emit.heartbeats.enabled": "false",
            "emit.checkpoints.enabled": "false",
            "refresh.topics.interval.seconds": 5,
            "b.producer.batch.size": 262144,
            "b.producer.linger.ms": 5,
            "b.producer.buffer.memory": 134217728,
            "a.consumer.max.poll.records": 5000,
            "a.consumer.max.partition.fetch.bytes": 8388608,
            "a.consumer.fetch.max.bytes": 67108864,
        }
        path = self._write("mirror", settings)
        with self._process("mirror", self._java("1g", "org.apache.kafka.connect.mirror.MirrorMaker", path)):
            yield

    def make_topics(self, topics: dict[str, int]) -> None:
        from confluent_kafka.admin import NewTopic

        admin = self._client("admin", "a")  # its futures fail when it goes
        made = admin.create_topics([NewTopic(name, count, 1) for name, count in topics.items()])
        for future in made.values():
            future.result()

    def produce(self, data: np.ndarray) -> None:
        settings = {"acks": "all", "linger.ms": 5, "batch.size": 131072, "queue.buffering.max.messages": 200_000}
        producer = self._client("Producer", "a", **settings)
        for row in data:
            while True:
                try:
                    producer.produce("rows", key=row[:16].tobytes(), value=row[16:].tobytes())
                    break
                except BufferError:
                    producer.poll(0.05)
        producer.flush()

    def at_target(self, topic: str) -> int:
        """Records of a topic at the target."""
        from confluent_kafka import KafkaException, TopicPartition

        if self._counter is None:
            self._counter = self._client("Consumer", "b")
        try:
            ends = [
                self._counter.get_watermark_offsets(TopicPartition(topic, p), timeout=5)[1] for p in range(PARTITIONS)
            ]
        except KafkaException:
            return 0  # the topic is not there yet
        return sum(ends)

    def lags(self) -> list[float]:
        """Seconds from the source's ack to a consumer at the target, on an idle pair; the first 20 warm it up."""
        from confluent_kafka import TopicPartition

        consumer = self._client("Consumer", "b", **{"fetch.min.bytes": 1})
        consumer.assign([TopicPartition("a.probes", 0, 0)])
        producer = self._client("Producer", "a", acks="all", **{"linger.ms": 0})
        lags: list[float] = []
        for number in range(PROBES + 20):
            producer.produce("probes", key=b"%d" % number, value=bytes(100))
            producer.flush(10)
            acked = time.perf_counter()
            message = consumer.poll(30)
            if message is None or message.error() or message.key() != b"%d" % number:
                raise PeerFailedError("a probe did not come to MirrorMaker's target")
            lags.append(time.perf_counter() - acked)
            time.sleep(0.01)
        return lags[20:]
