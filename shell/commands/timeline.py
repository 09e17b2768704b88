"""timeline: what actions did to datasets' files, and which files a dataset has as of any instant."""

from __future__ import annotations

import threading
from contextlib import closing
from typing import Annotated

import typer

from replication.config import Config
from shell.cli.help import Sections
from shell.cli.interrupting import leaving_on_interrupt
from shell.cli.invocation import Invocation, add_verb
from shell.cli.render import bytes_text, moment_text

_CHECK_S = 0.5

DatasetArgument = Annotated[str, typer.Argument(metavar="DATASET", help="As timeline list names it.")]


def register(app: typer.Typer) -> None:
    """Add these verbs to ``app``."""
    noun = typer.Typer(
        cls=Sections, no_args_is_help=True, help="Actions on datasets, and their files.", rich_markup_mode=None
    )
    add_verb(noun, "list", timeline_list)
    add_verb(noun, "files", timeline_files)
    add_verb(noun, "serve", timeline_serve)
    app.add_typer(noun, name="timeline")


def timeline_list(invocation: Invocation) -> None:
    """List the instants of the cluster's timeline: what was done to which dataset, oldest first."""
    from peer.timeline.configured import configured_timeline

    rows = [
        {
            "event": event.number,
            "at": moment_text(event.instant.time),
            "action": event.instant.action.value,
            "state": event.instant.state.value,
            "dataset": event.instant.dataset,
            "instant": event.instant.time,
        }
        for event in configured_timeline(_config(invocation)).since(0)
    ]
    columns = ("event", "at", "action", "state", "dataset", "instant")
    invocation.printer.rows(rows, columns, "no action is on the timeline")


def timeline_files(
    invocation: Invocation,
    dataset: DatasetArgument,
    as_of: Annotated[
        int | None, typer.Option("--as-of", metavar="INSTANT", help="As this instant left them; the newest otherwise.")
    ] = None,
) -> None:
    """List the files of a dataset that a reader sees, now or as of an instant."""
    from peer.timeline.configured import configured_timeline, configured_views

    config = _config(invocation)
    with closing(configured_views(config, configured_timeline(config))) as views:
        views.sync()
        rows = [
            {"partition": name, "path": version.path, "size": bytes_text(version.size), "added": version.added}
            for name in views.partitions(dataset)
            for found in (views.latest(dataset, name) if as_of is None else views.as_of(dataset, name, as_of))
            for version in (*([found.whole] if found.whole is not None else []), *found.deltas)
        ]
    invocation.printer.rows(rows, ("partition", "path", "size", "added"), "no files")


def timeline_serve(invocation: Invocation) -> None:
    """Answer questions about the timeline over HTTP, until Ctrl-C; needs walship[timeline]."""
    from peer.timeline.client import address_file
    from peer.timeline.configured import configured_timeline, configured_views
    from peer.timeline.serving.server import TimelineServer

    config, printer = _config(invocation), invocation.printer
    with (
        leaving_on_interrupt(printer.stopped),
        closing(configured_views(config, configured_timeline(config))) as views,
        TimelineServer(
            config.cluster.name, views, lambda job: None, config.timeline, config.tls, address_file(config)
        ) as server,
    ):
        scheme = "https" if config.tls.enabled else "http"
        printer.value(
            {"address": server.address}, f"the timeline of {config.cluster.name}: {scheme}://{server.address}"
        )
        waiting = threading.Event()
        while not waiting.wait(_CHECK_S):
            server.check()


def _config(invocation: Invocation) -> Config:
    from peer.client.connect import find_config

    return find_config(invocation.find().target)
