"""The sections that configure the merge: the lake, upkeep, and each table's targets."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from connector.config.section import Section, folder_url
from connector.config.target_columns import TargetColumns


def _lake_url(url: str) -> str:
    return folder_url(url, "s3a", "s3")


class LakeConfig(Section):
    """``[lake]``: where the Delta tables live: under a url, or in a schema of a catalog.

    `location`: folder of a catalog's new tables, which are external then; None: the catalog chooses.
    `single_driver`: nobody else ever writes to them, so any log store works for a lake on S3.
    `retention_days`: how long ``deltatide maintain`` keeps cuts readable. `salt`: the secret key of masks.
    """

    url: Annotated[str, AfterValidator(_lake_url)] | None = None
    catalog: str | None = Field(default=None, min_length=1)
    schema_name: str | None = Field(default=None, min_length=1, alias="schema")
    location: Annotated[str, AfterValidator(_lake_url)] | None = None
    single_driver: bool = False
    retention_days: float = Field(default=7.0, ge=0, le=3650)
    salt: str | None = Field(default=None, repr=False)

    @model_validator(mode="after")
    def _one_place(self) -> LakeConfig:
        named = (self.catalog is not None, self.schema_name is not None)
        if (self.url is not None) == all(named) or (self.url is not None and any(named)):
            raise ValueError("set either url, or both catalog and schema")
        if self.location is not None and self.url is not None:
            raise ValueError("location is for tables of a catalog: set url alone, or catalog and schema")
        return self


class MergeConfig(Section):
    """``[merge]``: how a merge runs. `parallel`: tables at a time; None: twice the cores, at most 8."""

    parallel: int | None = Field(default=None, ge=1, le=64)


class MaintainConfig(Section):
    """``[maintain]``: how often ``merge --every`` does upkeep between merges; `every_hours` None: never."""

    every_hours: float | None = Field(default=None, ge=0.01, le=8760)


class VerifyConfig(Section):
    """``[verify]``: how much ``merge --every`` verifies between merges, in rotation, and how often.

    `share`: fraction of the rows of all tables; `every_hours` None: never.
    """

    share: float = Field(default=0.05, ge=0.0001, le=1)
    every_hours: float | None = Field(default=None, ge=0.01, le=8760)


Shape = Literal["current", "history", "changes"]


def _usable(shapes: list[Shape]) -> list[Shape]:
    if "current" not in shapes and set(shapes) != {"changes"}:
        raise ValueError('must contain "current", or be ["changes"] alone')
    return list(dict.fromkeys(shapes))


class TableConfig(TargetColumns):
    """``[tables."namespace.name"]``: settings of one table; for those of its columns, see `TargetColumns`.

    `key`: columns of a unique key that identify a row if the table has no primary key. `deletes`: ``hard``
    removes a row from the Delta table, ``soft`` keeps and marks it. `shapes`: the Delta tables to keep: one
    of the current rows, plus others beside it (`merge.shapes`); or of changes alone, which needs no key, and
    no dump. `before_images`: also land the row as it was before each update and delete. `partition_by`,
    `cluster_by`: layout of a new Delta table of the current rows, by columns of the lake. `change_data_feed`:
    whether Delta records the changes of its rows.
    """

    key: list[str] | None = Field(default=None, min_length=1)
    deletes: Literal["hard", "soft"] = "hard"
    shapes: Annotated[list[Shape], AfterValidator(_usable)] = Field(default=["current"])
    before_images: bool = False
    partition_by: list[str] = Field(default_factory=list)
    cluster_by: list[str] = Field(default_factory=list, max_length=4)
    change_data_feed: bool = False

    @property
    def only_changes(self) -> bool:
        """Return whether only changes from the log are captured, without a key or existing rows."""
        return "current" not in self.shapes

    @model_validator(mode="after")
    def _no_useless_key(self) -> TableConfig:
        if self.only_changes and self.key:
            raise ValueError('key has no use with shapes = ["changes"]; add "current", or remove key')
        return self

    @model_validator(mode="after")
    def _no_unmasked_rows(self) -> TableConfig:
        if self.before_images and self.narrows:
            raise ValueError(
                "before_images lands whole rows, so it can't be combined with columns, exclude_columns,"
                " rename, mask or where"
            )
        return self

    @model_validator(mode="after")
    def _whole_key(self) -> TableConfig:
        if misfit := self.misfit_of_key(self.key or ()):
            raise ValueError(misfit)
        return self

    @model_validator(mode="after")
    def _one_layout(self) -> TableConfig:
        if self.partition_by and self.cluster_by:
            raise ValueError("set either partition_by or cluster_by")
        return self

    @model_validator(mode="after")
    def _forgets(self) -> TableConfig:
        if self.where is not None and self.deletes == "soft":
            raise ValueError('where needs deletes = "hard": rows that leave the condition are removed')
        return self
