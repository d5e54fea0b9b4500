"""What Django's own rules for passwords leave out."""

from __future__ import annotations

import re

from django.contrib.auth.models import AbstractBaseUser
from django.core.exceptions import ValidationError

# What who attacks this very product tries first.
OURS = frozenset({"poisonweb", "poisonguard", "poisonmessage", "deadletter", "admin"})
# What is shorter stands in many words.
SHORTEST_NAME = 4
_NO_LETTERS = re.compile(r"[\W\d_]+")


class NotOfThisProduct:
    """Refuses a password that is a word of ours, with or without digits and signs."""

    def validate(self, password: str, _: AbstractBaseUser | None = None) -> None:
        if _NO_LETTERS.sub("", password.casefold()) in OURS:
            raise ValidationError("This password is the first that others would try.")

    def get_help_text(self) -> str:
        return "Your password is not a word of this product."


class NotTheName:
    """Refuses a password that contains the name of its account, in any case.

    Django's own rule asks how alike the two are as a whole: olga-2026-password passes.
    """

    def validate(self, password: str, user: AbstractBaseUser | None = None) -> None:
        name = "" if user is None else user.get_username().casefold()
        if len(name) >= SHORTEST_NAME and name in password.casefold():
            raise ValidationError("This password contains the user name.")

    def get_help_text(self) -> str:
        return "Your password does not contain your user name."
