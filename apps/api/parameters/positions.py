"""Whose positions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from django.http import QueryDict

from apps.api.parameters.base import text


@dataclass(frozen=True, kw_only=True, slots=True)
class Reader:
    """Whose positions; None is everybody's."""

    topic: str | None
    client_name: str | None

    @classmethod
    def parse(cls, told: QueryDict) -> Self:
        return cls(
            topic=text("topic", told.get("topic")),
            client_name=text("client_name", told.get("client_name")),
        )
