"""What a peer publishes about itself is checked when it is read."""

from __future__ import annotations

import json
from uuid import UUID

import pytest

from replication.coordination.base import Public
from replication.core.ids import ClusterId
from replication.errors import FormatError


@pytest.mark.parametrize(
    "address",
    ["", "west", "west:", ":7450", "west:70000", "west:x"]
    + ["\ud800:7450", "w" * 254 + ":7450", "we st:7450", "w\n:1", "w:٣", "w:" + "1" * 5000],
)
def test_a_receiver_without_host_and_port_is_a_format_error(address: str) -> None:
    content = {"cluster": "west:00000000-0000-0000-0000-000000000001", "version": "1", "receivers": ["w:1", address]}
    with pytest.raises(FormatError, match="is not host:port"):
        Public.decode(json.dumps(content).encode())


def test_a_peers_receivers_take_a_small_part_of_an_assignment() -> None:
    receivers = tuple(f"host{number}.example:7450" for number in range(20_000))
    cluster = ClusterId("west", UUID(int=1))
    content = {"cluster": str(cluster), "version": "1", "receivers": receivers}
    used = Public.decode(json.dumps(content).encode()).receivers
    assert used == receivers[: len(used)] and 700 < len(used) < 900
    assert Public.decode(Public(cluster, "1", receivers).encode()).receivers == used


@pytest.mark.parametrize("address", ["10.0.0.7:7450", "west-1.example:1", "[::1]:7450", "fe80::1%eth0:7450", "a_b:0"])
def test_names_and_addresses_of_both_kinds_are_receivers(address: str) -> None:
    content = {"cluster": "west:00000000-0000-0000-0000-000000000001", "version": "1", "receivers": [address]}
    assert Public.decode(json.dumps(content).encode()).receivers == (address,)
