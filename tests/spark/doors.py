"""The two ways into Postgres, and the snapshot that both read in."""

from __future__ import annotations

from collections.abc import Callable

import pytest

DOORS = ("adbc", pytest.param("jdbc", marks=pytest.mark.needs("jdbc")))

Export = Callable[[], str]
