"""``python host_load.py CONFIG TABLE FIRST DIRECTORY``: a writer on one host, until a file named ``stop`` is there.

Upserts batches of new keys from FIRST on, then waits until all of it shows at west and here; ``rows`` says how many
were acked, all the while.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import walship

BATCH = 20


def main(config: str, table: str, first: int, directory: Path) -> None:
    pause, position, rows = threading.Event(), None, 0
    with walship.connect(config) as cluster:
        while not (directory / "stop").exists():
            batch = [{"id": first + rows + n, "host": config} for n in range(BATCH)]
            reached = cluster.upsert(table, batch, batch_id=f"{first}-{rows}")
            position = reached if position is None else position.join(reached)
            rows += BATCH
            told = directory / "rows.new"
            told.write_text(str(rows))
            told.rename(directory / "rows")
            pause.wait(0.1)
        assert position is not None
        cluster.wait(position, cluster="west", until="visible", timeout_s=400)
        cluster.wait(position, until="visible", timeout_s=400)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
