"""A real HDFS with WebHDFS: one namenode and one datanode in one JVM, as Hadoop's own tests have it.

Its jars are fetched once per user, like those of Spark.
"""

from __future__ import annotations

import getpass
import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import requests

from replication.tables.spark.jars import Jar, fetched, java_home_check
from tests.waiting import wait_until

JARS = [
    Jar(group, artifact, version, sha256)
    for group, artifact, version, sha256 in (
        (
            "org.apache.hadoop",
            "hadoop-client-minicluster",
            "3.4.2",
            "ae2406c544825b7734b8aad4f87eff60d9ec422284f0b16c2856032083b63c77",
        ),
        ("junit", "junit", "4.13.2", "8e495b634469d64fb8acfa3495a065cbacc8a0fff55ce1e31007be4c16dc57d3"),
        ("javax.xml.bind", "jaxb-api", "2.3.1", "88b955a0df57880a26a74708bc34f74dcaf8ebf4e78843a28b50eae945732b06"),
    )
]
#: So small that a file of a test has several.
BLOCK_BYTES = 1 << 20
_SETTINGS = {
    "dfs.blocksize": BLOCK_BYTES,
    "dfs.replication": 1,
    "dfs.ls.limit": 3,
    "dfs.namenode.fs-limits.min-block-size": 4096,
    f"hadoop.proxyuser.{getpass.getuser()}.hosts": "*",
    f"hadoop.proxyuser.{getpass.getuser()}.groups": "*",
}


@contextmanager
def hdfs_server(root: Path) -> Iterator[str]:
    """An HDFS whose files are below a folder of this host; its address, with its superuser.

    Raises:
        ConfigError: there is no Java, or the jars cannot be fetched.
        SparkMissingError: PySpark, whose jars it uses, is not installed.
    """
    jars, java = fetched(JARS), Path(java_home_check()) / "bin" / "java"
    spark = find_spec("pyspark")
    assert spark is not None and spark.origin is not None, "its jars were fetched by it"
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    line: list[object] = [java, "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", f"-Djava.io.tmpdir={root}"]
    line += [f"-Dtest.build.data={root}/data", f"-Dhadoop.log.dir={root}"]
    line += ["-cp", os.pathsep.join([*map(str, jars), f"{Path(spark.origin).parent}/jars/*"])]
    line += ["org.apache.hadoop.test.MiniDFSClusterManager", "-format", "-httpport", port]
    line += [f"-D{name}={value}" for name, value in _SETTINGS.items()]
    with (root / "log").open("wb") as log:
        process = subprocess.Popen([*map(str, line)], cwd=root, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        wait_until(
            lambda: _takes_files(process, port, root), timeout_s=300, what="HDFS", despite=(requests.ConnectionError,)
        )
        yield f"webhdfs://{getpass.getuser()}@127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def _takes_files(process: subprocess.Popen[bytes], port: int, root: Path) -> bool:
    assert process.poll() is None, (root / "log").read_text(errors="replace")[-2000:]
    beans = requests.get(f"http://127.0.0.1:{port}/jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState", timeout=20)
    (state,) = beans.json()["beans"] or [{}]
    return bool(state.get("NumLiveDataNodes")) and state.get("FSState") == "Operational"
