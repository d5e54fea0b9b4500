"""The two ways to read Postgres, and the exported snapshot that both use."""

from __future__ import annotations

from collections.abc import Callable

import pytest

DOORS = ("adbc", pytest.param("jdbc", marks=pytest.mark.needs("jdbc")))

Export = Callable[[], str]
