"""Hosts of a test as network namespaces on one bridge: each with an address of its own, its cable to be pulled."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from types import TracebackType

NETWORK = "10.77.0"


def why_not() -> str:
    """Why namespaces cannot be had here; "" when they can."""
    if sys.platform != "linux":
        return "network namespaces need Linux"
    if os.geteuid() != 0:
        return "network namespaces need root"
    if not shutil.which("ip") or not shutil.which("nft"):
        return "ip and nft are not there: apt-get install iproute2 nftables"
    probe = f"walship-probe-{os.getpid()}"
    if subprocess.run(["ip", "netns", "add", probe], capture_output=True).returncode:
        return "network namespaces cannot be made here"
    subprocess.run(["ip", "netns", "del", probe], capture_output=True, check=True)
    return ""


class Switch:
    """A bridge in a namespace of its own, and a namespace a host; all are gone when the context ends."""

    def __init__(self) -> None:
        self._mark = f"walship-{os.getpid()}"
        self._hosts: dict[str, str] = {}

    def __enter__(self) -> Switch:
        _run("ip", "netns", "add", self._mark)
        try:
            self._switch("link", "add", "br0", "type", "bridge")
            self._switch("link", "set", "br0", "up")
        except BaseException:
            _run("ip", "netns", "del", self._mark)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in (*map(self._name, self._hosts), self._mark):
            subprocess.run(["ip", "netns", "del", name], capture_output=True)

    def plug(self, host: str) -> str:
        """A new host on the bridge; its address."""
        address = f"{NETWORK}.{len(self._hosts) + 10}"
        name = self._name(host)
        _run("ip", "netns", "add", name)
        self._hosts[host] = address
        _run(
            "ip", "link", "add", f"p-{host}", "netns", self._mark, "type", "veth", "peer", "name", "eth0", "netns", name
        )
        self._switch("link", "set", f"p-{host}", "master", "br0", "up")
        _run("ip", "-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
        for device in ("eth0", "lo"):
            _run("ip", "-n", name, "link", "set", device, "up")
        return address

    def inside(self, host: str) -> tuple[str, ...]:
        """What runs a command on a host."""
        return ("ip", "netns", "exec", self._name(host))

    def pull(self, host: str) -> None:
        """Pull its cable: nothing goes in or out, and nobody is told."""
        self._switch("link", "set", f"p-{host}", "down")

    def plug_in(self, host: str) -> None:
        """Undo ``pull``."""
        self._switch("link", "set", f"p-{host}", "up")

    def part(self, one: str, other: str) -> None:
        """Let nothing pass between two hosts, all else as before."""
        chain = "add chain bridge parted f { type filter hook forward priority 0; }"
        drops = [
            f"add rule bridge parted f ip saddr {self._hosts[a]} ip daddr {self._hosts[b]} drop"
            for a, b in ((one, other), (other, one))
        ]
        _run("ip", "netns", "exec", self._mark, "nft", "; ".join(["add table bridge parted", chain, *drops]))

    def join(self) -> None:
        """Undo every ``part``."""
        _run("ip", "netns", "exec", self._mark, "nft", "delete table bridge parted")

    def _switch(self, *arguments: str) -> None:
        _run("ip", "-n", self._mark, *arguments)

    def _name(self, host: str) -> str:
        return f"{self._mark}-{host}"


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
