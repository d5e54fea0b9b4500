"""Long arrays for Postgres, written faster than psycopg writes its lists."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from enum import StrEnum


def array(values: Iterable[int | uuid.UUID | StrEnum]) -> str:
    """Write an array of what needs no quotes; cast it in SQL, as in `%s::int8[]`."""
    return "{" + ",".join(map(str, values)) + "}"
