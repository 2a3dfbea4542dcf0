"""What live views need of the environment."""

from __future__ import annotations

import importlib.util
from unittest.mock import Mock

import pytest
from pyspark.sql import DataFrame

from connector.errors import ConfigurationError
from merge import register


@pytest.mark.skipif(not hasattr(DataFrame, "scalar"), reason="live views need Spark 4")
def test_without_pandas_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match="live views need pandas") as failed:
        register(Mock(), Mock())
    assert "pip install" in (failed.value.hint or "")
