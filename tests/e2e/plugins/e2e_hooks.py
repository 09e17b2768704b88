"""A hook as a package of somebody's own brings it, found by its entry point."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyarrow as pa
import pyarrow.compute as pc


def rounded(options: Mapping[str, str]) -> Callable[[pa.Table], pa.Table]:
    """Round ``n`` down to a multiple of ``step``; rows without one go. With the option ``fail`` it takes no rows."""
    step = int(options["step"])

    def run(rows: pa.Table) -> pa.Table:
        if "fail" in options and rows.num_rows:
            raise RuntimeError("this hook was told to fail")
        kept = rows.filter(pc.is_valid(rows["n"]))
        whole = pc.multiply(pc.divide(kept["n"], step), step)
        return kept.set_column(kept.column_names.index("n"), "n", whole)

    return run
