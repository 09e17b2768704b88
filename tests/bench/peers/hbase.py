"""HBase 2.6: two one-region-server mini clusters on one ZooKeeper, each on its own mini HDFS, all in one JVM.

The write-ahead log is flushed to the datanode's memory, not synced to disk (``hbase.wal.hsync`` is off by default).
"""

from __future__ import annotations

from tests.bench.measure import Figure
from tests.bench.peers.jvm import replication_bench

_OPEN = ("lang", "lang.reflect", "io", "net", "nio", "util", "util.concurrent")


def run(count: int) -> list[Figure]:
    """A load while replicating, one while the peer was disabled, single puts."""
    opened = [f"java.base/java.{package}" for package in _OPEN] + ["java.base/sun.nio.ch", "java.base/jdk.internal.ref"]
    options = [option for package in opened for option in ("--add-opens", f"{package}=ALL-UNNAMED")]
    options += ["--add-modules", "jdk.unsupported", "--add-exports", "java.base/jdk.internal.misc=ALL-UNNAMED"]
    options += ["--add-exports", "java.security.jgss/sun.security.krb5=ALL-UNNAMED"]
    options += ["-Dorg.apache.hbase.thirdparty.io.netty.tryReflectionSetAccessible=true", "-Xms2g", "-Xmx6g"]
    return replication_bench("hbase", count, options)
