"""Parse a decision to carry out a preview."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Self

from apps.api.parameters.base import members_of, reason, refuse_unknown
from apps.api.parameters.previews import token_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """The token of a preview, and why it shall be carried out."""

    token: uuid.UUID
    reason: str

    @classmethod
    def parse(cls, data: object) -> Self:
        members = members_of(data)
        # A target has no effect here, only in the preview: refuse it.
        refuse_unknown(members, {"token", "reason"})
        return cls(
            token=token_of(members.get("token")), reason=reason(members.get("reason"))
        )
