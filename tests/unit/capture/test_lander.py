"""What a landed segment says about before-images."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from connector.capture.lander import LandedSegment
from connector.landing.event_batch import CdcColumns, EventBatch, assemble
from connector.position import Position
from connector.schema import TableSchema
from connector.source import ResumePoint
from tests.support.landing.landed import schema_of

PLAIN = schema_of("public.orders", id="int")
ASKING = replace(PLAIN, before_images=True)
Events = tuple[tuple[str, str | None], ...]


def landed(events: Events, schema: TableSchema = ASKING) -> LandedSegment:
    """Count batches of one event each: its operation, and what would make its before-image whole."""
    segment, at = LandedSegment(ResumePoint(20)), Position(1, 10, 0)
    for op, hint in events:
        rows = assemble(schema, [pa.array([1], pa.int32())], CdcColumns(op, 1, 10, 0))
        segment.count(EventBatch(schema, rows, at, at, before_hint=hint))
    return segment


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ((("insert", None), ("truncate", None)), {}),
        ((("insert", None), ("update", None)), {ASKING.table: None}),
        ((("delete", "fix it"), ("update", None)), {ASKING.table: "fix it"}),
        ((("update", None), ("delete", "fix it")), {ASKING.table: "fix it"}),
    ],
)
def test_one_image_that_lacks_columns_is_said_whatever_the_others(
    events: Events, said: dict[object, str | None]
) -> None:
    assert landed(events).before_images == said
    parts = LandedSegment(ResumePoint(20))
    for event in events:
        parts.add(landed((event,)))
    assert parts.before_images == said
    assert not landed(events, PLAIN).before_images
