"""Password validators that Django does not have."""

from __future__ import annotations

import re

from django.contrib.auth.models import AbstractBaseUser
from django.core.exceptions import ValidationError

# The passwords that an attacker of this product tries first.
OURS = frozenset({"poisonweb", "poisonguard", "poisonmessage", "deadletter", "admin"})
# Many passwords contain a shorter name by chance.
SHORTEST_NAME = 4
_NO_LETTERS = re.compile(r"[\W\d_]+")


class NotOfThisProduct:
    """Refuse passwords that are a product name, with or without digits and signs."""

    def validate(self, password: str, _: AbstractBaseUser | None = None) -> None:
        """Raise ValidationError for a password that is a word of this product.

        Only its letters are compared.
        """
        if _NO_LETTERS.sub("", password.casefold()) in OURS:
            raise ValidationError("This password is the first that others would try.")

    def get_help_text(self) -> str:
        return "Your password is not a word of this product."


class NotTheName:
    """Refuse passwords that contain the account's name, in any case.

    Django's validator compares the two as a whole: it accepts olga-2026-password.
    """

    def validate(self, password: str, user: AbstractBaseUser | None = None) -> None:
        """Raise ValidationError for a password that contains the user name."""
        name = "" if user is None else user.get_username().casefold()
        if len(name) >= SHORTEST_NAME and name in password.casefold():
            raise ValidationError("This password contains the user name.")

    def get_help_text(self) -> str:
        return "Your password does not contain your user name."
