"""Make ``replication/link/_pb`` from ``proto/walship.proto``; ``--check`` only says whether it is fresh.

Run by ``make proto``; needs grpcio-tools (extra ``dev``). Only messages are generated: the five methods of the
service are wired by hand in ``replication/link``, where frames pass without being copied.
"""

from __future__ import annotations

import sys
import tempfile
from importlib.resources import files
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "replication" / "link" / "_pb"
NAMES = ("walship_pb2.py", "walship_pb2.pyi")


def generate(target: Path) -> None:
    """Write the generated modules into ``target``."""
    from grpc_tools import protoc

    well_known = str(files("grpc_tools") / "_proto")
    arguments = ["protoc", f"-I{ROOT / 'proto'}", f"-I{well_known}", f"--python_out={target}", f"--pyi_out={target}"]
    if protoc.main([*arguments, str(ROOT / "proto" / "walship.proto")]) != 0:
        raise SystemExit("protoc failed")


def main() -> int:
    """Generate, or compare with what is there."""
    if "--check" not in sys.argv[1:]:
        TARGET.mkdir(exist_ok=True)
        (TARGET / "__init__.py").write_text(
            '"""Made from proto/walship.proto by deploy/gen_proto.py; do not edit."""\n'
        )
        generate(TARGET)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        stale = [
            n
            for n in NAMES
            if not (TARGET / n).exists() or (TARGET / n).read_bytes() != (Path(folder) / n).read_bytes()
        ]
    if stale:
        print(f"{', '.join(stale)} in {TARGET} do not match proto/walship.proto; run: make proto", file=sys.stderr)
    return bool(stale)


if __name__ == "__main__":
    raise SystemExit(main())
