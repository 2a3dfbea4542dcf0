"""Configuration: one TOML file for agent and merge, read once, with every problem in it reported together.

Invariants: an unknown setting is an error, never ignored; values from a variable or a secret file, and the
password of a url, never show in a message, a ``repr`` or a ``str``.

Imports nothing of the agent (no driver, no Arrow, no boto3), because the merge reads the same file.
"""

from __future__ import annotations

from connector.config.agent_sections import (
    MOST_ROWS_PER_SECOND,
    ControlConfig,
    DumpConfig,
    LandingConfig,
    LimitsConfig,
    SourceConfig,
)
from connector.config.configuration import Config, load
from connector.config.lake_sections import (
    LakeConfig,
    MaintainConfig,
    MergeConfig,
    TableConfig,
    VerifyConfig,
)
from connector.config.view_section import ViewConfig

__all__ = [
    "MOST_ROWS_PER_SECOND",
    "Config",
    "ControlConfig",
    "DumpConfig",
    "LakeConfig",
    "LandingConfig",
    "LimitsConfig",
    "MaintainConfig",
    "MergeConfig",
    "SourceConfig",
    "TableConfig",
    "VerifyConfig",
    "ViewConfig",
    "load",
]
