"""Seal secrets that must be read again, with a key derived from the installation's.

Fernet: AES-128-CBC and HMAC-SHA-256. Each purpose has its own key, so that what is
sealed for one cannot be put in the place of another.
"""

from __future__ import annotations

import base64
import hashlib

from cryptography.fernet import Fernet, InvalidToken
from django.conf import settings


class OtherKey(Exception):
    """It was sealed under another POISONWEB_SECRET_KEY, or is damaged."""


def seal(text: str, *, purpose: str) -> str:
    return _box(purpose).encrypt(text.encode()).decode()


def unseal(sealed: str, *, purpose: str) -> str:
    """Give the text in the clear; raise OtherKey where that cannot be done."""
    try:
        return _box(purpose).decrypt(sealed.encode()).decode()
    except InvalidToken:
        raise OtherKey from None


def _box(purpose: str) -> Fernet:
    secret = f"poisonweb {purpose}\0{settings.SECRET_KEY}".encode()
    return Fernet(base64.urlsafe_b64encode(hashlib.sha256(secret).digest()))
