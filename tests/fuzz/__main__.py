"""``python -m tests.fuzz --minutes 5``: edited true bytes for every decoder; what fails is kept in the corpus."""

from __future__ import annotations

import argparse
import faulthandler
import itertools
import mmap
import sys
import time
import traceback
from collections import Counter
from hashlib import sha256
from pathlib import Path
from random import Random

from tests.fuzz.decoders import DECODERS
from tests.fuzz.edits import edited, random_edits
from tests.fuzz.trial import CORPUS, corpus, try_one

_LAST_BYTES = 1 << 20


class LastInput:
    """The input under trial, in a file: it is there after the process has crashed."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(_LAST_BYTES))
        self._file = path.open("r+b")
        self._map = mmap.mmap(self._file.fileno(), _LAST_BYTES)

    def note(self, name: str, raw: bytes) -> None:
        """Keep it."""
        kept = f"{name} {len(raw)}\n".encode() + raw[: _LAST_BYTES - 200]
        self._map[: len(kept)] = kept


def _keep(name: str, raw: bytes) -> Path:
    kept = CORPUS / name / f"{sha256(raw).hexdigest()[:12]}.bin"
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_bytes(raw)
    return kept


def main() -> int:
    """Return the number of different failures, 0 when there are none."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--minutes", type=float, default=1.0)
    asked.add_argument("--count", type=int, default=0, help="inputs of each decoder, in place of minutes")
    asked.add_argument("--seed", type=int, default=time.time_ns())
    asked.add_argument("--last", type=Path, default=Path("/tmp") / "walship-fuzz-last")
    asked.add_argument("decoders", nargs="*", help=", ".join(DECODERS))
    given = asked.parse_args()
    faulthandler.enable()
    random, last = Random(given.seed), LastInput(given.last)
    names = given.decoders or list(DECODERS)
    inputs = {name: [*DECODERS[name].examples] for name in names}
    for name, file in corpus():
        if name in inputs:
            inputs[name].append(file.read_bytes())
    tried, values, failures = Counter[str](), Counter[str](), dict[str, str]()
    end_s = time.monotonic() + 60 * given.minutes
    print(f"seed {given.seed}", flush=True)
    for turn in itertools.count():
        if turn >= given.count if given.count else time.monotonic() > end_s:
            break
        for name in names:
            raw = random.choice(inputs[name]) if random.random() < 0.95 else random.randbytes(random.randrange(60))
            raw = edited(raw, random_edits(random), inputs[name])
            mend = DECODERS[name].mend
            if mend is not None and random.random() < 0.8:
                raw = mend(raw)
            last.note(name, raw)
            tried[name] += 1
            try:
                values[name] += try_one(name, raw)
            except Exception as error:
                found = traceback.extract_tb(error.__traceback__)[-1]
                what = f"{name}: {type(error).__name__} at {found.filename}:{found.lineno}"
                if what not in failures:
                    failures[what] = str(_keep(name, raw))
                    print(f"{what}: {error!r:.300} ({failures[what]})", flush=True)
    for name in names:
        print(f"{name:28} {tried[name]:>10,} tried {values[name]:>10,} values")
    print(f"{sum(tried.values()):,} inputs, {len(failures)} failures")
    return min(len(failures), 100)


if __name__ == "__main__":
    sys.exit(main())
