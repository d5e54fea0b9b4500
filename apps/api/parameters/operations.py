"""What a decision says."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Self

from apps.api.parameters.base import members_of, reason
from apps.api.parameters.previews import token_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """The token of a preview, and why it shall be carried out."""

    token: uuid.UUID
    reason: str

    @classmethod
    def parse(cls, data: object) -> Self:
        told = members_of(data)
        return cls(token=token_of(told.get("token")), reason=reason(told.get("reason")))
