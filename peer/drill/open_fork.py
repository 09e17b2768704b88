"""A fork as a probe in Python has it."""

from __future__ import annotations

import pyarrow as pa

from peer.drill.fork import ForkTables
from peer.drill.session import ForkSession


class OpenFork(ForkTables):
    """A fork opened for reading and writing, in Arrow and in SQL."""

    def sql(self, query: str) -> pa.RecordBatchReader:
        """Run a query over the fork's tables, or change rows of one; then the result is how many rows were changed.

        Raises:
            RequestError: DuckDB refuses it, or a fork cannot do it.
        """
        return ForkSession(self).rows(query)
