"""The text forms of ids, which come from other clusters, too."""

from __future__ import annotations

from uuid import UUID

import pytest

from replication.core.ids import ClusterId
from replication.errors import FormatError

_HEX = "00112233445566778899aabbccddeeff"


def test_a_cluster_id_is_no_longer_than_a_name_and_a_uuid() -> None:
    """Ids that were read are kept for a while."""
    assert ClusterId.parse(f"east:{_HEX}") == ClusterId.parse(f"east:urn:uuid:{UUID(_HEX)}")
    with pytest.raises(FormatError, match="is not a cluster id"):
        ClusterId.parse(f"east:{'-' * 100}{_HEX}")
