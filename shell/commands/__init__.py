"""The verbs of ``walship``, one file per noun."""

from __future__ import annotations

from collections.abc import Collection
from importlib import import_module
from keyword import iskeyword

import typer

from shell.cli.invocation import add_noun, add_verb

#: Sections as help shows them; of each its modules here with their verbs.
SECTIONS: dict[str, dict[str, tuple[str, ...]]] = {
    "To begin with": {"setup": ("init", "up", "down"), "demo": ("demo",)},
    "Clusters": {"peers": ("definecluster", "deletecluster", "listclusters"), "grants": ("grants", "invite")},
    "Tables": {
        "tables": (
            *("createtable", "altertable", "settable", "derivetable", "droptable", "describetable", "listtables"),
        )
    },
    "Replication": {
        "replication": ("enablereplication", "disablereplication"),
        "status": ("status",),
        "monitor": ("monitor",),
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

#: What help says of the verbs that have verbs of their own, and those.
NOUNS: dict[str, tuple[str, tuple[str, ...]]] = {
    "grants": ("What other clusters may do here.", ("list", "add", "remove")),
    "ops": ("Unfinished operations.", ("list", "show", "resume", "retry", "abandon")),
    "lostwrites": ("Rows that a failover left out.", ("list", "show", "merge", "discard", "export")),
    "quarantine": ("Frames that could not be applied.", ("list", "retry", "discard")),
    "dataset": (
        "Copies that are declared in a file.",
        ("add", "list", "show", "run", "pause", "resume", "remove", "history"),
    ),
    "timeline": (
        "Actions on datasets, and their files.",
        ("list", "files", "serve", "clean", "rollback", "restore"),
    ),
    "wal": ("WAL and landing files.", ("list", "dump", "verify", "salvage")),
}
#: The verbs that are about no existing cluster; of a dataset, only ``add`` may be.
_OF_NO_CLUSTER = {"init", "demo", *(f"dataset_{verb}" for verb in NOUNS["dataset"][1] if verb != "add")}


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
        for module, verbs in modules.items():
            if not asked or module in asked:
                add_module(app, module, verbs)
        for command in app.registered_commands[commands:]:
            command.rich_help_panel = title
        for group in app.registered_groups[groups:]:
            group.rich_help_panel = title


def add_module(app: typer.Typer, name: str, verbs: Collection[str]) -> None:
    """Give ``app`` the verbs of a module here: the functions of their names; those of a noun are NOUN_VERB."""
    module = import_module(f"{__name__}.{name}")
    for verb in verbs:
        if verb not in NOUNS:
            function = getattr(module, f"{verb}_" if iskeyword(verb) else verb)
            add_verb(app, verb, function, any_cluster=verb in _OF_NO_CLUSTER)
            continue
        help_text, below = NOUNS[verb]
        noun = add_noun(app, verb, help_text)
        for each in below:
            function = f"{verb}_{each}"
            add_verb(noun, each, getattr(module, function), any_cluster=function in _OF_NO_CLUSTER)
