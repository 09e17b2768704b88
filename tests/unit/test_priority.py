"""Work of the lowest priority, in sessions of its own and of others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_SESSION = Path("/proc/self/autogroup")
_TELLS = """
import os, sys
from replication.priority import lower_process
lower_process(int(sys.argv[1]))
print(os.nice(0), open('/proc/self/autogroup').read().strip())
"""

pytestmark = pytest.mark.skipif(not _SESSION.exists(), reason="this kernel does not share cores by session")


@pytest.mark.parametrize(("leads", "nice"), [(True, 19), (True, 5), (True, 0), (False, 19)])
def test_only_a_process_that_leads_its_session_lowers_it(leads: bool, nice: int) -> None:
    group = _SESSION.read_text().strip()  # empty for processes that are in no session's group
    printed = subprocess.check_output([sys.executable, "-c", _TELLS, str(nice)], start_new_session=leads, text=True)
    printed_nice, _, group_of_child = printed.strip("\n").partition(" ")
    assert int(printed_nice) == min(19, os.nice(0) + nice)
    assert group_of_child.endswith(f"nice {min(19, os.nice(0) + nice)}") if leads else group_of_child == group


def test_other_work_goes_before_the_script_of_a_drill(tmp_path: Path) -> None:
    script = tmp_path / "tells.sh"
    script.write_text("cat /proc/self/autogroup\n")
    runs = "import os, sys; from pathlib import Path; from peer.drill.probes import _run_script; os.nice(7); "
    runs += "print(_run_script(Path(sys.argv[1]), {}, 60.0).output)"
    printed = subprocess.check_output([sys.executable, "-c", runs, str(script)], text=True)
    assert printed.endswith(f"nice {min(19, os.nice(0) + 7)}\n\n")
