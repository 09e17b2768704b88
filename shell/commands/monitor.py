"""monitor: a cluster's status as a web page and as metrics."""

from __future__ import annotations

import signal
import sys
import threading
from typing import Annotated

from typer import Option

from shell.cli.invocation import Invocation


def monitor(
    invocation: Invocation,
    port: Annotated[int, Option(min=0, max=65535, metavar="PORT", help="Of 127.0.0.1; 0 for a free one.")] = 9180,
) -> None:
    """Serve a page with the status, and metrics for Prometheus, on this host until Ctrl-C."""
    from shell.monitor.sampling import SampledStatus
    from shell.monitor.server import MonitorServer

    with invocation.connect() as (cluster, printer), SampledStatus(cluster.status) as sampled:
        server = MonitorServer(sampled, port, "Choose another: --port PORT")
        with server.serving():
            if printer.as_json:
                printer.value({"url": server.url})
            else:
                printer.line(f"{server.url}  also /status.json and /metrics. Ctrl-C ends it")
            before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
            try:
                threading.Event().wait()
            finally:
                signal.signal(signal.SIGTERM, before)  # an interactive shell goes on
