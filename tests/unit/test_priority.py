"""Work of the lowest priority, in sessions of its own and of others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from peer.drill.probes import _run_script

_SESSION = Path("/proc/self/autogroup")
_TELLS = "import os; from replication.priority import lower_process; lower_process(); print(os.nice(0), end=' '); "
_TELLS += "print(open('/proc/self/autogroup').read().strip())"

pytestmark = pytest.mark.skipif(not _SESSION.exists(), reason="this kernel does not share cores by session")


@pytest.mark.parametrize("leads", [True, False])
def test_only_a_process_that_leads_its_session_lowers_it(leads: bool) -> None:
    group = _SESSION.read_text().strip()  # empty for processes that are in no session's group
    printed = subprocess.check_output([sys.executable, "-c", _TELLS], start_new_session=leads, text=True)
    nice, _, group_of_child = printed.strip("\n").partition(" ")
    assert int(nice) == min(19, os.nice(0) + 19)
    assert group_of_child.endswith("nice 19") if leads else group_of_child == group


def test_other_work_goes_before_the_script_of_a_drill(tmp_path: Path) -> None:
    script = tmp_path / "tells.sh"
    script.write_text("cat /proc/self/autogroup\n")
    result = _run_script(script, {}, 60.0)
    assert result.passed and result.output.endswith("nice 19\n")
