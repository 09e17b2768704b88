"""Processes that are started while gRPC is at work, as PySpark starts Java."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import signal, subprocess
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Thread

import replication.link.channel
import grpc

server = grpc.server(ThreadPoolExecutor(4))
echo = grpc.unary_unary_rpc_method_handler(lambda request, _: request)
server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Echo", {"Echo": echo}),))
port = server.add_insecure_port("127.0.0.1:0")
server.start()
call = grpc.insecure_channel(f"127.0.0.1:{port}").unary_unary("/test.Echo/Echo")
over = Event()

def load():
    while not over.is_set():
        call(b"x", timeout=10)

threads = [Thread(target=load) for _ in range(3)]
for thread in threads:
    thread.start()
ignore = lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)
print([code for _ in range(300) if (code := subprocess.Popen(["true"], preexec_fn=ignore).wait(120))])
over.set()
for thread in threads:
    thread.join()
server.stop(None).wait()
"""


def test_no_process_that_is_started_beside_calls_dies_before_it_begins():
    environment = {name: value for name, value in os.environ.items() if name != "GRPC_ENABLE_FORK_SUPPORT"}
    folder = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, cwd=folder, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr[-2000:]
