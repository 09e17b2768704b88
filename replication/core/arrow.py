"""Arrow, loaded when a part of it is first used: with NumPy it takes as long to load as a short command runs.

For modules that commands without rows load, too: ``from replication.core.arrow import pa``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
else:

    class _Arrow:
        def __getattr__(self, name: str) -> Any:
            found = getattr(import_module("pyarrow"), name)
            vars(self)[name] = found
            return found

    pa = _Arrow()

__all__ = ["pa"]
