"""The verbs of ``walship``, one file per noun."""

from __future__ import annotations

from collections.abc import Collection
from importlib import import_module

import typer

#: Sections as help shows them; of each its modules here with their verbs.
SECTIONS: dict[str, dict[str, tuple[str, ...]]] = {
    "To begin with": {"setup": ("init", "up", "down"), "demo": ("demo",)},
    "Clusters": {
        "peers": ("definecluster", "deletecluster", "listclusters"),
        "grants": ("grants", "invite"),
    },
    "Tables": {
        "tables": (
            *("createtable", "droptable", "describetable", "listtables", "altertable", "settable", "derivetable"),
        )
    },
    "Replication": {
        "replication": ("enablereplication", "disablereplication"),
        "status": ("status",),
        "bootstrap": ("bootstrap",),
        "operate": ("pause", "resume", "throttle", "drain", "removehost"),
        "ops": ("ops",),
    },
    "Disaster recovery": {
        "role": ("readonly",),
        "failover": ("switchover", "failover", "failback", "lostwrites"),
        "drill": ("drill",),
    },
    "Rows": {
        "data": ("write", "read", "sql"),
        "bulk": ("import",),
        "replay": ("replay", "fold"),
        "quarantine": ("quarantine",),
        "verify": ("verify",),
        "trace": ("trace",),
    },
    "Whole files": {"copy": ("copy", "sync"), "dataset": ("dataset",), "timeline": ("timeline",)},
    "Files and repair": {"wal": ("wal",), "restore": ("reincarnate", "rebuildledger")},
}


def register(app: typer.Typer, words: Collection[str] = ()) -> None:
    """Give ``app`` every verb, in the sections and the order help shows them.

    When some of the words of a command line are verbs, modules with others are not loaded: all of them together take
    longer than most verbs do.
    """
    asked = {
        module for modules in SECTIONS.values() for module, verbs in modules.items() if not set(verbs).isdisjoint(words)
    }
    for title, modules in SECTIONS.items():
        commands, groups = len(app.registered_commands), len(app.registered_groups)
        for module in modules:
            if not asked or module in asked:
                import_module(f"{__name__}.{module}").register(app)
        for command in app.registered_commands[commands:]:
            command.rich_help_panel = title
        for group in app.registered_groups[groups:]:
            group.rich_help_panel = title
