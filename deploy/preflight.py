"""Set-up's look at the machine: Java, and with ``--jars`` the jars; one clear line and code 2 when either is missing.

It also warns of a disk that may be too small. Run by the Makefile, without ``--jars`` before anything is installed.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from replication.errors import ReplicationError  # noqa: E402  (after the path is set)
from replication.tables.spark.jars import ensure_jars, java_home_check  # noqa: E402

#: .venv takes 1.3 GiB and the jars 60 MiB; the rest is for PySpark, which is unpacked and built on the way.
NEEDED_BYTES = 5 << 29


def main() -> int:
    """Look; 0 when all is there."""
    try:
        java_home_check()
        if "--jars" in sys.argv[1:]:
            ensure_jars()
        else:
            _tell_room(ROOT)
    except ReplicationError as e:
        print(e, file=sys.stderr)
        return 2
    return 0


def _tell_room(folder: Path) -> None:
    free = shutil.disk_usage(folder).free
    if free < NEEDED_BYTES and not (folder / ".venv" / ".ready").exists():
        free_gib, needed_gib = free / (1 << 30), NEEDED_BYTES / (1 << 30)
        print(
            f"Only {free_gib:.1f} GiB are free in {folder}, and set-up needs about {needed_gib:.1f} GiB: if it fails,"
            " make room and say the same again",
            file=sys.stderr,
        )


if __name__ == "__main__":
    raise SystemExit(main())
