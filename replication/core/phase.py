"""The phase of a rule: whether its table is bootstrapped at the peer. Pure."""

from __future__ import annotations

from enum import StrEnum


class Phase(StrEnum):
    """The phase of a rule. It decides which frames are sent to the peer, and which files are retained for it.

    ::

        LIVE ──────begin_bootstrap──────▶ BOOTSTRAPPING ──end_bootstrap──▶ LIVE
          └─need_bootstrap─▶ NEEDS_BOOTSTRAP ─┘  ▲ │
                                     ▲ └─────────┘ │ need_bootstrap
                                     └─────────────┘
    """

    LIVE = "live"  # required frames are sent; their files are retained until the peer has applied them
    BOOTSTRAPPING = "bootstrapping"  # the same; files since the bootstrap's begin are retained until it is complete
    NEEDS_BOOTSTRAP = "needs_bootstrap"  # required frames are lost: nothing is sent or retained until a bootstrap
