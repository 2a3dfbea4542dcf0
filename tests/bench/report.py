"""Measurements: value, reference, and whether the target is met. Printed, and written as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Target:
    """A bound on the ratio to the reference, or on the value itself."""

    of: Literal["ratio", "value"]
    sign: Literal[">=", "<="]
    bound: float

    def met(self, value: float, ratio: float | None) -> bool:
        """Return whether a measurement meets the target."""
        found = value if self.of == "value" else ratio
        return found is not None and (found >= self.bound if self.sign == ">=" else found <= self.bound)

    def __str__(self) -> str:
        return f"{self.of} {self.sign} {self.bound:g}"


@dataclass(frozen=True)
class Measurement:
    """One figure. Without a target it is informational, and always `ok`."""

    name: str
    value: float
    unit: str
    reference: str | None = None
    reference_value: float | None = None
    ratio: float | None = field(init=False)
    target: Target | None = None
    ok: bool = field(init=False)

    def __post_init__(self) -> None:
        ratio = self.value / self.reference_value if self.reference_value else None
        object.__setattr__(self, "ratio", ratio)
        object.__setattr__(self, "ok", self.target is None or self.target.met(self.value, ratio))

    def to_json(self) -> dict[str, object]:
        """Return the fields as written to bench.json."""
        fields = {n: round(v, 4) if isinstance(v, float) else v for n, v in asdict(self).items()}
        return {**fields, "target": None if self.target is None else str(self.target)}


def at_least(ratio: float) -> Target:
    """Return a target for the ratio to the reference."""
    return Target("ratio", ">=", ratio)


def at_most(value: float) -> Target:
    """Return a target for the value."""
    return Target("value", "<=", value)


def write(measurements: Sequence[Measurement], path: Path) -> None:
    """Write bench.json."""
    path.write_text(json.dumps([m.to_json() for m in measurements], indent=1) + "\n")


def show(measurements: Sequence[Measurement], console: Console) -> None:
    """Print the table."""
    table = Table("measurement", "value", "reference", "ratio", "target", "", box=None, header_style="bold")
    for m in measurements:
        reference = "" if m.reference_value is None else f"{_figure(m.reference_value)}  {m.reference}"
        table.add_row(
            m.name,
            f"{_figure(m.value)} {m.unit}",
            reference,
            "" if m.ratio is None else f"{m.ratio:.2f}",
            "" if m.target is None else str(m.target),
            "" if m.target is None else "[green]met[/]" if m.ok else "[bold red]missed[/]",
        )
    console.print(table)


def _figure(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
