"""When a role says that it is ready."""

from __future__ import annotations

import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest

from replication.coordination.paths import MemberKind
from shell.processes.roles import _ready_when_member
from tests.sites import Site

pytestmark = pytest.mark.heavy


def test_a_role_started_again_is_ready_once_it_is_the_member_and_not_the_one_that_was_killed(tmp_path: Path) -> None:
    with closing(Site(tmp_path, "east")) as site, closing(site.ensemble.connect(site.config.zookeeper_root)) as killed:
        killed.enrol(MemberKind.WORKERS, site.config.cluster.host, {})
        ready = threading.Event()
        with _ready_when_member(MemberKind.WORKERS, site.config, site.coordination, threading.Event(), ready.set):
            assert not ready.wait(0.3), "what is there is of the session that is about to end"
            site.coordination.enrol(MemberKind.WORKERS, site.config.cluster.host, {})
            assert ready.wait(20)


def test_supervisor_and_zookeeper_role_load_neither_arrow_nor_numpy() -> None:
    code = "import sys, shell.processes.up; print({'pyarrow', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "set()\n"


def test_zookeeper_s_role_loads_no_client_of_it_and_no_ledger() -> None:
    code = "import sys, shell.processes.roles; print({'kazoo', 'sqlalchemy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "set()\n"
