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
_TELLS += "print(open('/proc/self/autogroup').read().split()[-1])"

pytestmark = pytest.mark.skipif(not _SESSION.exists(), reason="this kernel does not share cores by session")


@pytest.mark.parametrize("leads", [True, False])
def test_only_a_process_that_leads_its_session_lowers_it(leads: bool) -> None:
    whole = _SESSION.read_text().split()[-1]
    told = subprocess.check_output([sys.executable, "-c", _TELLS], start_new_session=leads, text=True)
    assert told.split() == [str(min(19, os.nice(0) + 19)), "19" if leads else whole]


def test_other_work_goes_before_the_script_of_a_drill(tmp_path: Path) -> None:
    script = tmp_path / "tells.sh"
    script.write_text("cat /proc/self/autogroup\n")
    result = _run_script(script, {}, 60.0)
    assert result.passed and result.output.endswith("nice 19\n")
