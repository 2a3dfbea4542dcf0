"""The command ``maintain``: a list of steps that yield findings."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from connector.cli.lake import Stopping, lake_config, stopping
from connector.cli.options import ConfigOption
from connector.cli.printing import Shown, err, escape, log_to_stderr, out, progress_bar
from connector.config import Config
from connector.errors import ConfigurationError, DeltatideError, TransientError

if TYPE_CHECKING:
    from connector.maintenance.compaction import Compaction
    from connector.maintenance.landing_maintenance import LandingMaintenance

maintain_commands = typer.Typer()


def landing_zone_findings(
    config: Config,
    *,
    dry_run: bool = False,
    forget: str | None = None,
    progress: Shown = lambda *_: None,
    stop: threading.Event | None = None,
    compaction_seconds: float = math.inf,
) -> Iterator[Any]:
    """Remove what no lake needs from the landing zone, compact the rest, and yield findings.

    These are like those of `merge.lake.upkeep`. An unknown lake (`forget`) is raised. Other errors become
    findings: upkeep of the lake's tables does not depend on this.
    """
    from connector.maintenance.landing_maintenance import maintain_landing_zone
    from merge.lake.upkeep import Finding

    begun, status = time.monotonic(), "planned" if dry_run else "done"
    try:
        result = maintain_landing_zone(
            config, dry_run=dry_run, forget_lake=forget, stop=stop, compaction_seconds=compaction_seconds,
            progress=lambda done, of, what: progress(done, of, f"landing zone, {what}"),
        )  # fmt: skip
    except ConfigurationError:
        raise
    except DeltatideError as error:
        status = "deferred" if isinstance(error, TransientError) else "failed"
        yield Finding("landing zone", "remove and compact", str(error), status, hint=error.hint)
        return
    for consumer in result.forgotten:
        then = "its next merge requests full dumps of what is gone"
        then = "it can't continue past what is gone" if consumer.kind == "stream" else then
        yield Finding(consumer.title, "forget", then, status)
    took = time.monotonic() - begun
    for what, reason in (*_removed(result), *_compacted(result.compaction)):
        yield Finding("landing zone", what, reason, status, took)
    for path in result.compaction.damaged:
        reason = f"{path} is missing or not as it was written"
        hint = "restore it from a copy, or dump its table in full: merges need it"
        yield Finding("landing zone", "compact", reason, "failed", hint=hint)


def _removed(result: LandingMaintenance) -> Iterator[tuple[str, str]]:
    """Return findings of what retention removed, and why."""
    if result.needed is None or not result.removal.objects:
        return
    removal, first = result.removal, result.needed.needs[0]
    what = (
        f"remove {removal.manifests:,} manifests, {removal.files:,} landing files "
        f"({removal.bytes / 2**20:,.1f} MiB), {removal.others:,} other objects"
    )
    yield what, f"the first manifest still needed is {result.needed.first}: {first.who}"


def _compacted(done: Compaction) -> Iterator[tuple[str, str]]:
    """Return findings of what compaction did, and why."""
    if done.files:
        what = f"compact {done.files:,} landing files ({done.bytes / 2**20:,.1f} MiB) into {done.into:,}"
        yield what, f"small ones of {done.blocks:,} blocks of manifests, each complete for an hour"
    if done.removed:
        yield f"remove {done.removed:,} landing files", "compacted a day ago or longer"


def _lake_findings(
    spark: Any, config: Config, *, dry_run: bool, progress: Shown, stop: threading.Event
) -> Iterator[Any]:
    from merge.lake.upkeep import upkeep

    return upkeep(spark, config, dry_run=dry_run, progress=progress, stop=stop)


@maintain_commands.command(epilog="Example: deltatide maintain -c shop.toml --dry-run")
def maintain(
    config: ConfigOption,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be done and why; change nothing.")
    ] = False,
    forget: Annotated[
        str | None,
        typer.Option(
            metavar="LAKE",
            help="Forget a lake that no longer merges, or a streaming query that has ended ('stream NAME'),"
            " so no files are kept for it.",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per finding, each on its own line.")
    ] = False,
) -> None:
    """Remove what no lake needs from the landing zone, compact the rest, and do upkeep of the lake's tables.

    Manifests younger than landing.retention_days stay, and cuts younger than lake.retention_days.
    """
    from connector.maintenance.landing_maintenance import check_lake

    settings = lake_config(config)
    log_to_stderr(verbose=False)
    if forget is not None:  # before Spark is started
        check_lake(settings, forget)
    stop, statuses = Stopping(), []
    with stopping(settings, stop, reads_landing=False) as spark, progress_bar(shown=not as_json) as progress:
        shared: Any = {"dry_run": dry_run, "progress": progress, "stop": stop.event}
        for name, findings in (
            ("landing zone", landing_zone_findings(settings, forget=forget, **shared)),
            ("lake tables", _lake_findings(spark, settings, **shared)),
        ):
            if stop.event.is_set():
                break
            for finding in findings:
                statuses.append(finding.status)
                _print_json(name, finding) if as_json else _print(finding)
    if not as_json and not stop.event.is_set() and not statuses:
        out.print("nothing to do")
    if stop.event.is_set():
        raise typer.Exit(stop.exit_code)
    raise typer.Exit(1 if "failed" in statuses else 0)


def _print_json(step: str, finding: Any) -> None:
    print(json.dumps({"step": step} | asdict(finding)), flush=True)


def _print(finding: Any) -> None:
    """Print a finding on one line, and a failure's hint on the next."""
    what = f"{escape(finding.subject)}: {finding.action}"
    if finding.status == "failed":
        err.print(f"[bold red]failed[/] {what}: {escape(finding.reason)}")
        if finding.hint:
            err.print(f"[bold]hint:[/] {escape(finding.hint)}")
        return
    shown = {"planned": "would do", "done": "done", "deferred": "next time"}[finding.status]
    took = f", {finding.seconds:.1f} s" if finding.status == "done" else ""
    out.print(f"{shown}: {what} ({escape(finding.reason)}){took}")
