"""Chooses the job that merges each kind of shape."""

from __future__ import annotations

from merge.shapes.changes_job import ChangesJob
from merge.shapes.history_job import HistoryJob
from merge.shapes.shape_job import ShapeJob

JOBS: dict[str, type[ShapeJob]] = {"changes": ChangesJob, "history": HistoryJob}
