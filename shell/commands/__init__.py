"""What ``walship`` can be told: a file a noun, each with its verbs."""

from __future__ import annotations

import typer

from shell.commands import (
    bootstrap,
    bulk,
    data,
    demo,
    operate,
    peers,
    quarantine,
    replay,
    replication,
    restore,
    setup,
    tables,
    trace,
    verify,
    wal,
)

SECTIONS = (
    ("To begin with", (setup, demo)),
    ("Clusters", (peers,)),
    ("Tables", (tables,)),
    ("Replication", (replication, bootstrap, operate)),
    ("Rows", (data, bulk, replay, quarantine, verify, trace)),
    ("Files and repair", (wal, restore)),
)


def register_all(app: typer.Typer) -> None:
    """Give ``app`` every verb, in the sections and the order help shows them."""
    for title, nouns in SECTIONS:
        commands, groups = len(app.registered_commands), len(app.registered_groups)
        for noun in nouns:
            noun.register(app)
        for command in app.registered_commands[commands:]:
            command.rich_help_panel = title
        for group in app.registered_groups[groups:]:
            group.rich_help_panel = title
