"""The options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ConfigOption = Annotated[
    Path,
    typer.Option(
        "-c",
        "--config",
        metavar="FILE",
        help="Path to the configuration file (examples in conf/).",
        envvar="DELTATIDE_CONFIG",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
VerboseOption = Annotated[bool, typer.Option("-v", "--verbose", help="Log more.")]
LogJsonOption = Annotated[
    bool, typer.Option("--log-json", help="Log a JSON object per line.", envvar="DELTATIDE_LOG_JSON")
]
