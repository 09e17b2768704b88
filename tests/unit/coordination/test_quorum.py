"""Where a cluster's ZooKeeper is, as a person writes it."""

from __future__ import annotations

import pytest

from replication.coordination.paths import Quorum
from replication.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "servers"),
    [
        ("zk1:2181,zk2:2181,zk3:2181/walship/east", "zk1:2181,zk2:2181,zk3:2181"),
        ("zk1,zk2:2182,zk3/walship/east", "zk1:2181,zk2:2182,zk3:2181"),
        ("10.0.0.1/walship/east", "10.0.0.1:2181"),
        ("[::1],[::2]:2182/walship/east", "[::1]:2181,[::2]:2182"),
    ],
)
def test_a_server_without_a_port_takes_2181(text: str, servers: str) -> None:  # 004-30
    assert Quorum.parse(text) == Quorum(servers, "/walship/east")


@pytest.mark.parametrize(
    "text",
    ["", "/east", ",zk1/east", "zk1,/east", "zk1:/east", "zk1:port/east", "zk 1/x", "zk1"]
    + ["zk:99999/x", "[a:1/x", "?x:1/x", "[::::1]:1/x", "\ud800:1/x", "z" * 254 + ":1/x", "[zk1]/x", "zk:٣/x"],
)
def test_what_names_no_server_or_no_root_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="zk1:2181"):
        Quorum.parse(text)
