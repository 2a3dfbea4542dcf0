"""The commands about dumps: dump, dumps, pause, resume, cancel, set."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.table import Table

from connector.cli.options import ConfigOption, JsonOption
from connector.cli.printing import duration, escape, out, when
from connector.config import MOST_ROWS_PER_SECOND, load
from connector.errors import ConfigurationError, RequestError
from connector.landing.dump_progress import DumpProgress, progress_of
from connector.landing.manifest import DumpState

dump_commands = typer.Typer()

DumpArgument = Annotated[
    str | None, typer.Argument(help="A dump, or the request that asked for it, as listed by deltatide dumps.")
]
WhereOption = Annotated[
    str | None, typer.Option(help="Only rows that match this condition, in the source's SQL dialect.")
]
KeysOption = Annotated[
    str | None,
    typer.Option(
        help='Only these keys: "1,2,3", or a JSON array of keys (arrays for keys of several columns).'
    ),
]
KeysFileOption = Annotated[
    Path | None,
    typer.Option(help="Only the keys in this file: one on each line, or a JSON array as in --keys."),
]
AllOption = Annotated[bool, typer.Option("--all", help="All unfinished dumps.")]


@dump_commands.command(
    epilog="Example: deltatide dump -c shop.toml public.orders --where \"status = 'open'\""
)
def dump(
    config: ConfigOption,
    tables: Annotated[list[str] | None, typer.Argument(help="Tables, as namespace.table.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All captured tables.")] = False,
    where: WhereOption = None,
    keys: KeysOption = None,
    keys_file: KeysFileOption = None,
    request: Annotated[
        str | None,
        typer.Option("--id", help="The request's id; sent twice with the same content, it runs once."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Ask the running agent to dump existing rows while the log keeps flowing."""
    from connector.control.dump_requests import request_dump
    from connector.control.source_view import SourceView

    if bool(tables) == everything:
        raise ConfigurationError("name tables, or pass --all", hint="deltatide dump --help")
    wanted = chosen_keys(where, keys, keys_file)
    request_id = request_dump(SourceView(load(config)), tables, where, wanted, request)
    if as_json:
        print(json.dumps({"id": request_id}))
    else:
        out.print(f"requested dump {escape(request_id)}; check its progress with: deltatide dumps")


def chosen_keys(where: str | None, keys: str | None, keys_file: Path | None) -> list[list[str]] | None:
    """Return the keys given, if any; only one of the options is allowed."""
    if sum(given is not None for given in (where, keys, keys_file)) > 1:
        raise ConfigurationError(
            "--where, --keys and --keys-file can't be combined", hint="run the command for each"
        )
    return parse_keys(keys) if keys is not None else read_keys(keys_file) if keys_file else None


def read_keys(file: Path) -> list[list[str]]:
    """Read the keys of ``--keys-file``: one per line, taken as it is, or JSON as in ``--keys``."""
    try:
        text = file.read_bytes().decode()
    except OSError as error:
        raise ConfigurationError(f"{file}: {(error.strerror or str(error)).lower()}") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{file}: not UTF-8 at byte {error.start}") from error
    if text.lstrip().startswith("["):
        return parse_keys(text, str(file))
    keys = [[line.removesuffix("\r")] for line in text.split("\n") if line.strip()]
    if not keys:
        raise ConfigurationError(f"{file} holds no keys", hint="write one key on each line")
    return keys


def parse_keys(text: str, name: str = "--keys") -> list[list[str]]:
    """Parse keys, ``1,2,3`` or JSON, to lists of the source's text values; `name`: of the option or file."""
    if not text.lstrip().startswith("["):
        return [[part.strip()] for part in text.split(",") if part.strip()]
    try:
        values = json.loads(text, parse_float=str, parse_int=str, parse_constant=str)
    except json.JSONDecodeError as error:
        raise RequestError(f"{name} is not JSON: {error.msg} at column {error.colno}") from error
    except RecursionError as error:
        raise RequestError(f"{name} is nested too deeply") from error
    return [[_key_value(v, name) for v in (key if isinstance(key, list) else [key])] for key in values]


def _key_value(value: Any, name: str) -> str:
    """Return a JSON value as the source's text; numbers keep their digits."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return value
    raise RequestError(f"{name} holds {json.dumps(value)[:50]}, which is not a key value")


@dump_commands.command(epilog="Example: deltatide dumps -c shop.toml")
def dumps(config: ConfigOption, as_json: JsonOption = False) -> None:
    """List dumps: what was requested or rejected, their state and progress, and the settings in effect."""
    from connector.control.dump_requests import list_dumps
    from connector.control.source_view import SourceView

    listed = list_dumps(SourceView(load(config)))
    if as_json:
        print(json.dumps(listed.as_json(), indent=2))
        return
    print_dumps([s for s, _ in listed.dumps], listed.held_back)
    for request, why in listed.rejected.items():
        out.print(f"rejected request {escape(request)}, {when(why.at)}: {escape(why.text)}")
    settings = ", ".join(f"{name} {value:,}" for name, value in asdict(listed.settings).items())
    out.print(f"settings: {settings}")
    if listed.pause_new:
        out.print("new dumps begin paused; to continue: deltatide resume --all")


def print_dumps(states: Sequence[DumpState], held_back: str | None = None) -> None:
    """Print dumps as a table; `held_back`: why no chunks are read now, if so."""
    table = Table(
        "dump", "table", "kind", "reason", "state", "chunks", "rows", "of about", "share", "rows/s", "left",
        "finished", box=None,
    )  # fmt: skip
    for s in states:
        p = progress_of(s, held_back, states)
        table.add_row(
            escape(s.id), escape(str(s.table)), s.kind, s.reason, escape(_state_of(p)),
            f"{s.chunks:,}", f"{s.rows:,}",
            "" if s.rows_estimate is None else f"{s.rows_estimate:,}",
            "" if p.share is None else f"{p.share:.0%}",
            "" if p.rows_per_second is None else f"{p.rows_per_second:,.0f}",
            "" if p.seconds_left is None else duration(p.seconds_left), when(s.finished_at),
        )  # fmt: skip
    out.print(table)


def _state_of(progress: DumpProgress) -> str:
    return f"{progress.state}: {progress.why}" if progress.why else progress.state


@dump_commands.command(epilog="Example: deltatide pause -c shop.toml --all")
def pause(
    config: ConfigOption,
    dump: DumpArgument = None,
    everything: AllOption = False,
    as_json: JsonOption = False,
) -> None:
    """Pause a dump after the chunk being read; with --all, also those queued later, until resume --all."""
    _control("pause", config, dump, everything, as_json)


@dump_commands.command(epilog="Example: deltatide resume -c shop.toml --all")
def resume(
    config: ConfigOption,
    dump: DumpArgument = None,
    everything: AllOption = False,
    as_json: JsonOption = False,
) -> None:
    """Resume a paused dump where it left off."""
    _control("resume", config, dump, everything, as_json)


@dump_commands.command(epilog="Example: deltatide cancel -c shop.toml nightly-orders")
def cancel(
    config: ConfigOption,
    dump: DumpArgument = None,
    everything: AllOption = False,
    as_json: JsonOption = False,
) -> None:
    """Cancel a dump. What it has landed stays.

    After a first dump or a repair is cancelled, no cut is exact until a later full dump of the table ends.
    """
    _control("cancel", config, dump, everything, as_json)


def _control(
    kind: Literal["pause", "resume", "cancel"],
    config: Path,
    dump: str | None,
    everything: bool,
    as_json: bool,
) -> None:
    from connector.control.dump_requests import request_control
    from connector.control.source_view import SourceView

    if (dump is None) != everything:
        raise ConfigurationError("name a dump, or pass --all", hint=f"deltatide {kind} --help")
    request_id = request_control(SourceView(load(config)), kind=kind, dump=dump, all=everything)
    _print_requested(request_id, f"requested: {kind} {dump or 'all dumps'}", as_json)


@dump_commands.command("set", epilog="Example: deltatide set -c shop.toml --workers 1 --rows-per-second 5000")
def set_(
    config: ConfigOption,
    dump: Annotated[
        str | None,
        typer.Argument(
            help="A dump, or the request that asked for it; if omitted, all dumps, including later ones."
        ),
    ] = None,
    chunk_rows: Annotated[
        int | None, typer.Option(min=1, max=10_000_000, help="Rows per chunk, starting with the next one.")
    ] = None,
    delay_seconds: Annotated[
        float | None, typer.Option(min=0, max=3600, help="How long a worker pauses after each chunk.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, max=64, help="Chunks read in parallel; for one dump, the maximum.")
    ] = None,
    rows_per_second: Annotated[
        int | None,
        typer.Option(
            min=0, max=MOST_ROWS_PER_SECOND, help="Limit, averaged over several chunks; 0 means none."
        ),
    ] = None,
    defaults: Annotated[
        bool, typer.Option("--defaults", help="Discard earlier settings and use the configuration's again.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Change how fast dumps are read, while they run; kept across restarts."""
    from connector.control.dump_requests import request_control
    from connector.control.source_view import SourceView

    settings = {
        "chunk_rows": chunk_rows,
        "delay_seconds": delay_seconds,
        "workers": workers,
        "rows_per_second": rows_per_second,
    }
    given = {name: value for name, value in settings.items() if value is not None}
    if not given and not defaults:
        raise ConfigurationError("name a setting, or pass --defaults", hint="deltatide set --help")
    view = SourceView(load(config))
    request_id = request_control(view, kind="set", dump=dump, settings=given, defaults=defaults)
    _print_requested(request_id, f"requested: settings of {dump or 'all dumps'}", as_json)


def _print_requested(request_id: str, text: str, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"id": request_id}))
    else:
        out.print(f"{escape(text)}; effective with the next chunk, see: deltatide dumps")
