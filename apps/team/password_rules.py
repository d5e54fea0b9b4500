"""What Django's own rules for passwords leave out."""

from __future__ import annotations

import re

from django.contrib.auth.models import AbstractBaseUser
from django.core.exceptions import ValidationError

# What who attacks this very product tries first.
OURS = frozenset({"poisonweb", "poisonguard", "poisonmessage", "deadletter", "admin"})
_NO_LETTERS = re.compile(r"[\W\d_]+")


class NotOfThisProduct:
    """Refuses a password that is a word of ours, with or without digits and signs."""

    def validate(self, password: str, _: AbstractBaseUser | None = None) -> None:
        if _NO_LETTERS.sub("", password.casefold()) in OURS:
            raise ValidationError("This password is the first that others would try.")

    def get_help_text(self) -> str:
        return "Your password is not a word of this product."
