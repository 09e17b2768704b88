"""Upper bounds of long texts in data files' statistics: PyIceberg adds one to a letter, which may give half of a pair.

After U+D7FF come the surrogates, which are no text; U+E000 is the next letter.
"""

from __future__ import annotations

from pyiceberg.io import pyarrow as written
from pyiceberg.utils.truncate import truncate_upper_bound_text_string


def upper_bound(value: str, trunc_length: int | None) -> str | None:
    """A text of ``trunc_length`` letters at most that is not below ``value``; None when there is none."""
    bound = truncate_upper_bound_text_string(value, trunc_length)
    return None if bound is None else bound.replace("\ud800", "\ue000")


def keep_bounds_text() -> None:
    """Have PyIceberg note them so in this process. Idempotent."""
    written.truncate_upper_bound_text_string = upper_bound  # type: ignore[attr-defined]
