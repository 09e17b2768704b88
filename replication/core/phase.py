"""How far a rule has its table at the peer. Pure."""

from __future__ import annotations

from enum import StrEnum


class Phase(StrEnum):
    """How far a rule has its table at the peer, which decides what goes and what is held for it.

    ::

        LIVE ──────begin_bootstrap──────▶ BOOTSTRAPPING ──end_bootstrap──▶ LIVE
          └─need_bootstrap─▶ NEEDS_BOOTSTRAP ─┘  ▲ │
                                     ▲ └─────────┘ │ need_bootstrap
                                     └─────────────┘
    """

    LIVE = "live"  # what the rule requires goes, and its files are held until it is applied there
    BOOTSTRAPPING = "bootstrapping"  # the same, and files from the bootstrap's begin on are held until it is complete
    NEEDS_BOOTSTRAP = "needs_bootstrap"  # something required is lost: nothing goes and nothing is held until one begins
