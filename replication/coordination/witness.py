"""A witness: a ZooKeeper of a third place that confirms leases, so that the side of a cut that reaches it goes on.

Each cluster has a node there, named after its id. It holds the newest role epoch that another cluster ended, by whom,
and for how long the cluster's writers ack after they last read it. All of it only grows, and changes conditionally.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace

from replication.coordination.base import Tree
from replication.core.ids import MALFORMED, ClusterId
from replication.errors import CoordinationError, FormatError, SuccessionError

_TRIES = 8


@dataclass(frozen=True, slots=True)
class Witnessed:
    """What a witness keeps of one cluster.

    Attributes:
        ended: role epochs below this one are ended, 0 for none.
        successor: the id of the cluster that ended them.
        lease_s: its writers ack so long after they last asked, 0.0 if they never did.
    """

    ended: int = 0
    successor: str = ""
    lease_s: float = 0.0

    def encode(self) -> bytes:
        """Encode as JSON."""
        return json.dumps({"ended": self.ended, "successor": self.successor, "lease_s": self.lease_s}).encode()

    @staticmethod
    def decode(content: bytes) -> Witnessed:
        """Decode JSON. Raises FormatError."""
        try:
            fields = json.loads(content)
            return Witnessed(int(fields["ended"]), str(fields["successor"]), float(fields["lease_s"]))
        except MALFORMED as error:
            raise FormatError(f"the witness holds {content[:80]!r}: {error}") from None


class Witness:
    """The nodes of clusters at ``root``. Each call has a session of its own, from ``opened``, which has started.

    Every call raises CoordinationError when the witness does not answer.
    """

    def __init__(self, opened: Callable[[], Tree], root: str) -> None:
        self._opened = opened
        self._root = root

    def read(self, cluster: ClusterId) -> Witnessed:
        """What is kept of a cluster, as of some moment during this call. Changes nothing."""
        path = self._path(cluster)
        with closing(self._opened()) as tree:
            tree.check(path, 0)  # the quorum answers it, so this session's server has all that was written before
            node = tree.get(path)
        return Witnessed() if node is None else Witnessed.decode(node.content)

    def confirm(self, cluster: ClusterId, lease_s: float) -> int:
        """The role epoch below which a cluster's epochs are ended, as of some moment during this call.

        Whoever ends an epoch after that moment reads that a lease of ``lease_s`` began.
        """
        return self._update(cluster, lambda kept: replace(kept, lease_s=max(kept.lease_s, lease_s))).ended

    def end(self, cluster: ClusterId, epoch: int, successor: ClusterId) -> float:
        """End a cluster's epochs below ``epoch``; returns how long its writers may still ack, in seconds.

        Raises:
            SuccessionError: another cluster has taken over from it, or this one has under a newer epoch.
        """

        def ended(kept: Witnessed) -> Witnessed:
            if kept.ended > epoch or kept.ended == epoch and kept.successor != str(successor):
                raise SuccessionError(
                    f"the witness says that {kept.successor or 'nobody'} took over from {cluster.name} with epoch"
                    f" {kept.ended}, so {successor.name} cannot with epoch {epoch}",
                    'See walship status there. If that cluster is lost, too: set [failover] lease = "own" here, then'
                    f" walship failover {successor.name} --from {cluster.name}",
                )
            return replace(kept, ended=epoch, successor=str(successor))

        return self._update(cluster, ended).lease_s

    def _update(self, cluster: ClusterId, change: Callable[[Witnessed], Witnessed]) -> Witnessed:
        """Change a node until the quorum says that nobody else did meanwhile; returns what it holds then."""
        path = self._path(cluster)
        with closing(self._opened()) as tree:
            for _ in range(_TRIES):
                node = tree.get(path)
                if node is None:
                    self._create(tree, path)
                    continue
                kept = Witnessed.decode(node.content)
                changed = change(kept)
                if changed != kept and tree.set(path, changed.encode(), node.version) is not None:
                    return changed
                if changed == kept and tree.check(path, node.version):
                    return kept
        raise CoordinationError(f"{path} of the witness changes faster than it can be read", "Try again")

    def _create(self, tree: Tree, path: str) -> None:
        parts = path.split("/")[1:]
        for length in range(1, len(parts)):
            tree.create("/" + "/".join(parts[:length]), b"")
        tree.create(path, Witnessed().encode())

    def _path(self, cluster: ClusterId) -> str:
        return f"{self._root}/{cluster.name}-{cluster.incarnation}"
