"""The actor of an action, as text that outlives the account."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class Actor:
    name: str

    @classmethod
    def user(cls, username: str) -> Self:
        """Make the actor that stands for a person."""
        return cls(f"user:{username}")

    @classmethod
    def key(cls, name: str) -> Self:
        """Make the actor that stands for an API key."""
        return cls(f"key:{name}")

    @classmethod
    def system(cls, part: str) -> Self:
        """Make the actor that stands for a part of Poisonweb itself."""
        return cls(f"system:{part}")

    @property
    def is_person(self) -> bool:
        return self.name.startswith("user:")

    def __str__(self) -> str:
        return self.name
