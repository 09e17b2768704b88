"""The cluster of a command: ``--cluster NAME|FILE``, else ``WALSHIP_CLUSTER``, else the only one found.

It looks for TOML files with a ``[cluster]`` section in the current folder and two levels below.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from glob import glob
from pathlib import Path

from replication.errors import ConfigError

VARIABLE = "WALSHIP_CLUSTER"
_LEVELS = ("*.toml", "*/*.toml", "*/*/*.toml")


@dataclass(frozen=True, slots=True)
class FoundCluster:
    """A cluster's name and its TOML file, or the ZooKeeper address to find it at."""

    name: str
    target: str


def clusters_below(folder: Path) -> list[FoundCluster]:
    """Every cluster whose TOML file lies in ``folder`` or at most two levels below, by name."""
    found = {}
    for pattern in _LEVELS:
        for name in sorted(glob(pattern, root_dir=folder, include_hidden=True)):  # passes over what cannot be listed
            file = folder / name
            if cluster := _name_in(file):
                found[file.resolve()] = FoundCluster(cluster, str(file))
    return sorted(found.values(), key=lambda f: (f.name, f.target))


def find_cluster(wanted: str | None, environ: Mapping[str, str], folder: Path) -> FoundCluster:
    """The cluster that is meant.

    Args:
        wanted: what ``--cluster`` gave: a name, a TOML file or the folder of one, or ``zk1:2181,zk2:2181/east``; None
            when it was not given.
        environ: the environment.
        folder: where to look for TOML files.

    Raises:
        ConfigError: none, or more than one; the hint lists them.
    """
    wanted = wanted or environ.get(VARIABLE) or None
    if wanted is not None and ":" in wanted and "/" in wanted.rpartition(":")[2]:
        return FoundCluster(wanted.rpartition("/")[2], wanted)
    if wanted is not None and (wanted.endswith(".toml") or "/" in wanted or wanted in (".", "..")):
        file = _expanded(wanted)
        file = folder / file if not file.is_absolute() else file
        if file.is_dir():
            file /= "walship.toml"
        if not file.is_file():
            raise ConfigError(f"there is no configuration file {file}", "Write one: walship init DIR")
        return FoundCluster(_name_in(file) or file.stem, str(file))
    known = clusters_below(folder)
    if wanted is not None:
        known = [found for found in known if found.name == wanted]
        if not known:
            raise ConfigError(
                f"no cluster named {wanted!r} was found in {folder} or below",
                "Give its file: --cluster DIR/walship.toml",
            )
    if not known:
        raise ConfigError(
            f"no cluster was found in {folder} or below",
            f"Make one: walship init DIR. Or name one: --cluster FILE, or {VARIABLE}",
        )
    if len(known) > 1:
        names = ", ".join(f"{found.name} ({found.target})" for found in known)
        raise ConfigError(f"several clusters were found: {names}", f"Choose one: --cluster NAME, or {VARIABLE}=NAME")
    return known[0]


def current_folder() -> Path:
    """The current folder. ConfigError when it was removed."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise ConfigError("the current folder does not exist any more", "Change to another one: cd") from None


def _expanded(wanted: str) -> Path:
    try:
        return Path(wanted).expanduser()
    except RuntimeError:
        raise ConfigError(f"{wanted} is in the home of a user who is not known here", "Give its whole path") from None


def _name_in(file: Path) -> str:
    try:
        if not file.is_file():  # a pipe would be waited for
            return ""
        with file.open("rb") as opened:
            section = tomllib.load(opened).get("cluster")
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError):
        return ""
    name = section.get("name") if isinstance(section, dict) else None
    return name if isinstance(name, str) else ""
