"""Parse the filters of the list of positions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from django.http import QueryDict

from apps.api.parameters.base import text


@dataclass(frozen=True, kw_only=True, slots=True)
class PositionParams:
    """Filters of the list of positions; None matches all."""

    topic: str | None
    client_name: str | None

    @classmethod
    def parse(cls, params: QueryDict) -> Self:
        """Parse the filters; raises Invalid."""
        return cls(
            topic=text("topic", params.get("topic")),
            client_name=text("client_name", params.get("client_name")),
        )
