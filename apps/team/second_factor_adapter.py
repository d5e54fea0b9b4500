"""allauth's adapter for second factors: sealed secrets, and the account's name."""

from __future__ import annotations

from typing import Any

from allauth.mfa.adapter import DefaultMFAAdapter

from apps.core import secret_encryption
from apps.core.errors import Unavailable

PURPOSE = "second factor"


class SealingAdapter(DefaultMFAAdapter):  # type: ignore[misc]  # it has no types
    """Seal secrets in the database, and name the account in the app."""

    def encrypt(self, text: str) -> str:
        """Encrypt what allauth stores of a second factor, by the SECRET_KEY."""
        return secret_encryption.seal(text, purpose=PURPOSE)

    def decrypt(self, encrypted_text: str) -> str:
        """Decrypt a stored second factor; raise Unavailable under another key."""
        try:
            return secret_encryption.unseal(encrypted_text, purpose=PURPOSE)
        except secret_encryption.OtherKey as error:
            raise Unavailable(
                "The second factor was sealed under another POISONWEB_SECRET_KEY: start"
                " with the key of then, or let an admin take the factor away."
            ) from error

    def get_totp_label(self, user: Any) -> str:
        """Return the account's name that the app shows beside its codes."""
        return str(user.username)
