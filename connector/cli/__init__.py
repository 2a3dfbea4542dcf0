"""The ``deltatide`` command: parsing and printing only.

Exit status: 0 success, 1 failure, 2 wrong usage or invalid configuration. An error is a few lines,
with what to do; never a traceback.
With ``--json``, output for programs is printed as JSON.
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from connector import __version__
from connector.cli.agent import agent_commands
from connector.cli.dumps import dump_commands
from connector.cli.explain import explain_commands
from connector.cli.maintain import maintain_commands
from connector.cli.merge import merge_commands
from connector.cli.printing import close_broken_pipe, err, fail, out
from connector.cli.query import query_commands
from connector.cli.rebuild import rebuild_commands
from connector.cli.verify import verify_commands
from connector.cli.views import view_commands
from connector.errors import DeltatideError

app = typer.Typer(
    name="deltatide",
    help="Keeps Delta Lake tables in sync with PostgreSQL, MySQL and MariaDB tables.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _add(commands: typer.Typer) -> None:
    """Add commands; each paragraph of their help becomes one line, which a terminal wraps to its width."""
    for command in commands.registered_commands:
        text = inspect.getdoc(command.callback) or ""
        command.help = "\n\n".join(paragraph.replace("\n", " ") for paragraph in text.split("\n\n"))
    app.add_typer(commands)


_add(agent_commands)
_add(dump_commands)
_add(merge_commands)
_add(query_commands)
_add(view_commands)
_add(verify_commands)
_add(explain_commands)
_add(rebuild_commands)
_add(maintain_commands)


def main() -> None:
    """Run the command; each of our errors becomes a message and an exit status.

    Return on success: for Databricks, which calls this, any `SystemExit` is a failed task.
    """
    try:
        app(standalone_mode=True)
    except SystemExit as end:
        if end.code:
            raise
    except DeltatideError as error:
        fail(error)
    except KeyboardInterrupt:
        err.print("interrupted")
        sys.exit(130)
    except BrokenPipeError:
        close_broken_pipe()


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
) -> None:
    if version:
        out.print(__version__)
        raise typer.Exit


@app.command(epilog="Example: deltatide demo --source mariadb --rows 200000")
def demo(
    folder: Annotated[Path, typer.Option(help="The folder for everything that the demo writes.")] = Path(
        "demo-data"
    ),
    rows: Annotated[int, typer.Option(min=1000, help="Rows in all tables at the start.")] = 1_000_000,
    seconds: Annotated[int, typer.Option(min=5, help="How many seconds the demo's writer runs.")] = 60,
    source: Annotated[
        Literal["postgres", "mariadb", "mysql"], typer.Option(help="The database to capture.")
    ] = "postgres",
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep agent, writer and status page running until Ctrl-C.")
    ] = False,
) -> None:
    """Watch a live database being captured, dumped and merged; compare lake and source row by row."""
    from connector.demo.run import demo as run_demo

    raise typer.Exit(run_demo(folder, rows=rows, seconds=seconds, source=source, keep=keep))
