"""What a peer publishes about itself is checked when it is read."""

from __future__ import annotations

import json

import pytest

from replication.coordination.base import Public
from replication.errors import FormatError


@pytest.mark.parametrize("address", ["", "west", "west:", ":7450", "west:70000", "west:x"])
def test_a_receiver_without_host_and_port_is_a_format_error(address: str) -> None:
    content = {"cluster": "west:00000000-0000-0000-0000-000000000001", "version": "1", "receivers": ["w:1", address]}
    with pytest.raises(FormatError, match="is not host:port"):
        Public.decode(json.dumps(content).encode())
