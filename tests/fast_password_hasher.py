"""Passwords of people who sign in for a test only."""

from __future__ import annotations

from django.contrib.auth.hashers import PBKDF2PasswordHasher


class OneRound(PBKDF2PasswordHasher):
    """The product's hasher, without the rounds that make it slow on purpose."""

    iterations = 1


ONE_ROUND = [f"{OneRound.__module__}.{OneRound.__qualname__}"]
