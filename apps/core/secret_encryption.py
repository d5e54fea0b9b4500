"""Encrypt secrets with a key derived from POISONWEB_SECRET_KEY.

Fernet: AES-128-CBC and HMAC-SHA-256. Each purpose has its own key, so that a secret
sealed for one purpose cannot be used for another.
"""

from __future__ import annotations

import base64
import hashlib

from cryptography.fernet import Fernet, InvalidToken
from django.conf import settings


class OtherKey(Exception):
    """The secret was sealed with another POISONWEB_SECRET_KEY, or is damaged."""


def seal(text: str, *, purpose: str) -> str:
    """Encrypt a text with a key that the SECRET_KEY and the purpose determine."""
    return _cipher_for(purpose).encrypt(text.encode()).decode()


def unseal(sealed: str, *, purpose: str) -> str:
    """Decrypt a sealed text; raise OtherKey if that is impossible."""
    try:
        return _cipher_for(purpose).decrypt(sealed.encode()).decode()
    except InvalidToken:
        raise OtherKey from None


def _cipher_for(purpose: str) -> Fernet:
    """Derive the cipher for a purpose from the SECRET_KEY."""
    secret = f"poisonweb {purpose}\0{settings.SECRET_KEY}".encode()
    return Fernet(base64.urlsafe_b64encode(hashlib.sha256(secret).digest()))
