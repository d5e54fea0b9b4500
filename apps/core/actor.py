"""The actor of an action, as text that outlives the account."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class Actor:
    name: str

    @classmethod
    def user(cls, username: str) -> Self:
        """Name a person as the actor."""
        return cls(f"user:{username}")

    @classmethod
    def key(cls, name: str) -> Self:
        """Name an API key as the actor."""
        return cls(f"key:{name}")

    @classmethod
    def system(cls, part: str) -> Self:
        """Name a part of Poisonweb itself as the actor."""
        return cls(f"system:{part}")

    @property
    def is_person(self) -> bool:
        return self.name.startswith("user:")

    def __str__(self) -> str:
        return self.name
