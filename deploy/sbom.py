"""``python -m deploy.sbom FILE``: the SBOM of a release, in CycloneDX 1.5, from the lock file and the jars' sums.

It needs no network: licences come from the metadata of what is installed. ``--check`` writes nothing, and fails when
a package that is installed has another version than the lock file says.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
_PIN = re.compile(r"([A-Za-z0-9._-]+)==(\S+)")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class Component:
    """One dependency: a package of PyPI, or a jar of Maven's repository. ``sums`` are SHA-256 sums of its files."""

    ecosystem: str
    name: str
    version: str
    sums: tuple[str, ...] = field(repr=False)

    @property
    def purl(self) -> str:
        """Its package URL."""
        kind = {"PyPI": "pypi", "Maven": "maven"}[self.ecosystem]
        return f"pkg:{kind}/{self.name.replace(':', '/')}@{self.version}"


def components(root: Path = ROOT) -> list[Component]:
    """Everything that the lock file and the lists of jars pin."""
    return [*_packages((root / "constraints.txt").read_text()), *_jars(root / "replication" / "tables" / "spark")]


def _packages(lock: str) -> Iterator[Component]:
    found: list[tuple[str, str, list[str]]] = []
    for line in lock.splitlines():
        if pin := _PIN.match(line):
            found.append((pin[1].lower(), pin[2], []))
        if found:
            found[-1][2].extend(_HASH.findall(line))
    return (Component("PyPI", name, version, tuple(sums)) for name, version, sums in found)


def _jars(folder: Path) -> Iterator[Component]:
    for file in sorted(folder.glob("jars*.sha256")):
        for line in file.read_text().splitlines():
            digest, coordinates = line.split()
            name, _, version = coordinates.rpartition(":")
            yield Component("Maven", name, version, (digest,))


def document(found: list[Component], version: str) -> dict[str, Any]:
    """The SBOM."""
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {"type": "application", "name": "walship", "version": version}},
        "components": [_entry(each) for each in found],
    }


def _entry(component: Component) -> dict[str, Any]:
    group, _, name = component.name.rpartition(":")
    entry: dict[str, Any] = {
        "type": "library",
        "bom-ref": component.purl,
        "name": name,
        "version": component.version,
        "purl": component.purl,
        **({"group": group} if group else {}),
    }
    if len(component.sums) == 1:
        entry["hashes"] = [{"alg": "SHA-256", "content": component.sums[0]}]
    else:  # a file for each platform
        entry["properties"] = [{"name": "walship:sha256", "value": each} for each in component.sums]
    if component.ecosystem == "PyPI" and (licence := _licence(component.name)):
        entry["licenses"] = [{"license": {"name": licence}}]
    return entry


def _licence(name: str) -> str:
    try:
        said = metadata.distribution(name).metadata
    except metadata.PackageNotFoundError:
        return ""
    by_class = [
        each.rpartition(" :: ")[2] for each in said.get_all("Classifier") or () if each.startswith("License ::")
    ]
    short, exact = ((said.get_all(key) or [""])[0].strip() for key in ("License", "License-Expression"))
    return exact or " or ".join(by_class) or short.partition("\n")[0][:80]


def deviations(found: list[Component]) -> list[str]:
    """What is installed here in another version than is pinned, and what is pinned without a sum."""
    said = [f"{each.name}: no SHA-256 sum" for each in found if not each.sums]
    for each in found:
        if each.ecosystem == "PyPI":
            try:
                installed = metadata.version(each.name)
            except metadata.PackageNotFoundError:
                continue
            if installed != each.version:
                said.append(f"{each.name}: {installed} is installed, and {each.version} is pinned")
    return said


def main(arguments: list[str]) -> int:
    """Write or check; 1 when something deviates."""
    found = components()
    if said := deviations(found):
        print("\n".join(said), file=sys.stderr)
        return 1
    if arguments != ["--check"]:
        from replication import __version__

        target = Path(arguments[0] if arguments else "build/walship.cdx.json")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(document(found, __version__), indent=1) + "\n", encoding="utf-8")
        print(f"{target}: {len(found)} components")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
