"""The command line: ``walship VERB …``.

Prints an error and a hint, and exits with the code of ``replication/errors.py``. 0 is success, 1 an unexpected error,
2 also a wrong command line, 130 Ctrl-C. ``--debug`` shows tracebacks.
"""

from __future__ import annotations

import errno
import gc
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any, cast

import typer
from typer import Option

from replication import __version__, log
from replication.error_text import one_line
from replication.errors import ConfigError, NoSpaceError, ReplicationError
from shell.cli.find import current_folder
from shell.cli.forwarded import verb_at
from shell.cli.help import Sections
from shell.cli.interrupting import INTERRUPTED, leave, leave_now, print_error
from shell.cli.invocation import ClusterOption, DebugOption, Invocation, JsonOption, add_verb
from shell.cli.render import Printer
from shell.processes.descriptors import open_standard_streams

_WrongLine = cast("type[Exception]", typer.BadParameter.__base__)  # the base of wrong command lines


def make_app(words: Sequence[str] = ()) -> typer.Typer:
    """The command line as a Typer app; with ``words``, at least the verbs among them."""
    app = typer.Typer(
        name="walship",
        cls=Sections,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
        rich_markup_mode=None,
        help="Replicates Apache Iceberg tables between clusters by shipping write-ahead logs.",
    )

    @app.callback()
    def shared(
        ctx: typer.Context,
        cluster: ClusterOption = None,
        as_json: JsonOption = False,
        debug: DebugOption = False,
        version: Annotated[
            bool, Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
        ] = False,
    ) -> None:
        ctx.obj = Invocation(cluster, as_json, debug, run)

    from shell.commands import register  # deferred: a role's process needs no verbs

    register(app, words)
    add_verb(app, "shell", shell)
    return app


def shell(invocation: Invocation) -> None:
    """Run verbs in an interactive shell, with history and completion."""
    from shell.interactive import Shell, interact  # deferred: only this verb needs a prompt

    found, printer = invocation.find_if_any(), invocation.printer
    flags = [*(["--json"] if invocation.as_json else []), *(["--debug"] if invocation.debug else [])]
    raise typer.Exit(interact(Shell(_run_line, make_app(), found, printer, flags), printer))


def _run_line(arguments: Sequence[str]) -> int:
    """Run a line of the shell.

    A drill, which lowers its priority, and ``up``, which forks, get a process; Ctrl-C is for that alone.
    """
    if not {"drill", "up"}.intersection(arguments):
        return run(arguments)
    from shell.processes.spawn import child_environment  # deferred: few lines need it

    command = [sys.executable, "-P", "-c", "from shell.entry import main; main()", *arguments]
    process = subprocess.Popen(command, env=child_environment())
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        return process.wait()
    finally:
        signal.signal(signal.SIGINT, before)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(__version__)
        raise typer.Exit


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code; ``help VERB`` is ``VERB --help``."""
    while (at := verb_at(arguments)) is not None and arguments[at] == "help":
        arguments = [*arguments[at + 1 :], "--help"]
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    debug = "--debug" in options or bool(os.environ.get("WALSHIP_DEBUG"))
    printer = Printer("--json" in options)
    log.configure_when_used("info" if debug else "error")
    try:
        code = make_app(arguments)(args=list(arguments), prog_name="walship", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except SystemExit as e:
        if isinstance(e.__context__, BrokenPipeError):  # Typer's way to end when its reader has gone
            return 0
        return e.code if isinstance(e.code, int) else 1
    except typer.Abort:
        print_error(printer.stopped())
        return 1
    except _WrongLine as error:
        return _wrong_line(error, printer)
    except KeyboardInterrupt:
        print_error(printer.stopped())
        return INTERRUPTED
    except BrokenPipeError:
        return 0
    except Exception as error:
        if debug:
            traceback.print_exc()
        expected = error if isinstance(error, ReplicationError) else _foreseen(error)
        printer.error(expected)
        return expected.exit_code


def _wrong_line(error: Any, printer: Printer) -> int:
    error.message = error.message.replace("Value error, ", "")  # what pydantic puts before a choice that does not exist
    taken = str(getattr(error, "option_name", ""))
    if taken[1:2].isdigit():
        error.message = f"{taken} is read as an option. Put values that begin with - last, after --: … -- {taken}"
    if printer.as_json:
        verb = error.ctx.command_path if error.ctx else "walship"
        if error.message.startswith("Usage: "):  # the whole help, which is for people
            error.message = "Missing command."
        printer.error(ConfigError(error.format_message(), f"See {verb} --help"))
    else:
        with suppress(OSError):  # nobody reads it
            error.show()
    return int(error.exit_code)


def _foreseen(error: Exception) -> ReplicationError:
    if isinstance(error, FileNotFoundError) and error.filename is None:
        try:
            current_folder()
        except ConfigError as removed:
            return removed
        if "temporary directory" in str(error):
            return ConfigError(f"{error.strerror}", "Let TMPDIR name a folder that you may write to")
    if isinstance(error, PermissionError) and error.filename:
        return ConfigError(f"permission denied: {error.filename}", "Run it as the user to whom that belongs")
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        named = f"this path is too long: {str(error.filename)[:80]}…" if error.filename else "a path is too long"
        return ConfigError(named, "Choose a shorter one")
    full = os.strerror(errno.ENOSPC)
    if isinstance(error, OSError) and error.errno == errno.ENOSPC and (error.filename or error.strerror == full):
        return NoSpaceError(f"no space left for {error.filename or 'the output'}", "Make room, or write elsewhere")
    if full in str(error):  # Arrow and Java name no file
        return NoSpaceError(
            "no space left for tables' files or temporary files",
            "Make room on the disks of [cluster] data_dir and [catalog] warehouse",
        )
    return ReplicationError(one_line(error), "Unexpected. Run it again with --debug to see the traceback")


def main() -> None:
    """The ``walship`` command."""
    open_standard_streams()
    if sys.argv[1:2] == ["_role"]:
        from shell.processes import role_process

        role_process.leave(role_process.serve_arguments(sys.argv[2:]))
    gc.set_threshold(50_000, 20, 50)  # collection took a fifth of a short command's time
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # looking for plugins took a thirtieth of it
    code = run(sys.argv[1:])
    try:
        sys.stdout.flush()
    except (OSError, ValueError):  # its reader has gone, or its disk is full: it would be flushed again
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    if code == INTERRUPTED:
        leave_now()
    leave(code)


if __name__ == "__main__":
    main()
