"""Sessions of coordination, as tests look at them."""

from __future__ import annotations

from replication.coordination.paths import MemberKind
from replication.coordination.session import Coordination


def session_of(coordination: Coordination) -> int:
    """Its id; 0 while there is none."""
    return coordination._keeper.session()


def holds(coordination: Coordination, kind: MemberKind) -> bool:
    """Whether the only member of a kind belongs to this session."""
    return [member.session for member in coordination.members(kind)] == [session_of(coordination)]
