"""Set-up's look at the machine: Java, and with ``--jars`` the jars; one clear line and code 2 when either is missing.

Run by the Makefile, without ``--jars`` before anything is installed.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from replication.errors import ReplicationError  # noqa: E402  (after the path is set)
from replication.tables.jars import ensure_jars, java_home_check  # noqa: E402


def main() -> int:
    """Look; 0 when all is there."""
    try:
        java_home_check()
        if "--jars" in sys.argv[1:]:
            ensure_jars()
    except ReplicationError as e:
        print(e, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
