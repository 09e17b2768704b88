"""DuckLake, with its catalog in a file of DuckDB: commits of 100 rows, and reads of one key.

Its extension must have DuckDB's version, so both are installed into an environment of their own, and this file is run
there: it prints one JSON object.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

EXTENSION = "duckdb-extension-ducklake"
COMMITS, ROWS = 100, 100


def run(_: int) -> list[Any]:
    """Milliseconds of a commit, and of a read of one key afterwards."""
    from tests.bench.measure import Figure, percentile  # deferred: the other environment has none of it
    from tests.bench.peers.peer import PeerFailedError, PeerMissingError, execute, folder

    with folder("ducklake") as home:
        python = str(home / "venv" / "bin" / "python")
        execute(sys.executable, "-m", "venv", str(home / "venv"))
        try:
            execute(python, "-m", "pip", "install", "--quiet", EXTENSION)
        except PeerFailedError as error:
            raise PeerMissingError(f"pip cannot install {EXTENSION}: {error}") from None
        taken = json.loads(execute(python, __file__, str(home)))
    return [
        Figure(f"peer ducklake: {what}, p{q * 100:.0f}", percentile(seconds, q) * 1e3, "ms")
        for what, seconds in taken.items()
        for q in (0.5, 0.99)
    ]


def _measured(home: Path) -> dict[str, list[float]]:
    import duckdb

    files = Path(sys.prefix).glob("lib/*/site-packages/duckdb_extension_ducklake/extensions/*/*.duckdb_extension")
    session = duckdb.connect(config={"allow_unsigned_extensions": "true"})
    session.execute(f"LOAD '{next(files)}'")
    session.execute(f"ATTACH 'ducklake:{home / 'catalog'}' AS lake (DATA_PATH '{home / 'data'}'); USE lake")
    session.execute("CREATE TABLE t (k VARCHAR, v VARCHAR)")
    insert = f"INSERT INTO t SELECT ? || '-' || i, repeat('v', 100) FROM range({ROWS}) r(i)"
    return {
        f"commit of {ROWS} rows": [_timed(session, insert, str(number)) for number in range(COMMITS)],
        f"read of one key, after {COMMITS} commits": [
            _timed(session, "SELECT * FROM t WHERE k = ?", f"{number}-7") for number in range(COMMITS)
        ],
    }


def _timed(session: Any, query: str, value: str) -> float:
    began = time.perf_counter()
    session.execute(query, [value]).fetchall()
    return time.perf_counter() - began


if __name__ == "__main__":
    print(json.dumps(_measured(Path(sys.argv[1]))))
