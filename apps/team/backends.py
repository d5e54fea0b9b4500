"""Check passwords, few at a time, and without holding a database connection meanwhile.

A slow hash makes guessing slow. Without a bound, forty-eight strangers who send any
password would keep both processors and all database connections busy.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import BoundedSemaphore
from typing import Any

from django.contrib.auth.backends import ModelBackend
from django.db import connection
from django.http import HttpRequest

from apps.core import clock
from apps.team import second_factor, sign_in_attempts
from apps.team.models import User
from apps.team.sign_in_attempts import SignInAttempt
from apps.team.sign_in_errors import TooManySignIns

AT_ONCE = 2
LONGEST_WAIT_SECONDS = 10.0
_slots = BoundedSemaphore(AT_ONCE)


class PasswordBackend(ModelBackend):
    """Django's backend with a bound and delays; raises TooManySignIns for both."""

    def authenticate(
        self,
        request: HttpRequest | None,
        username: str | None = None,
        password: str | None = None,
        page: str = "",
        **_: Any,
    ) -> User | None:
        """Return the user of a name and a right password; count and audit a wrong one.

        Raises TooManySignIns while the attempt has to wait.
        """
        if username is None or password is None:
            return None
        attempt = SignInAttempt.of_password(request, account=username, page=page)
        sign_in_attempts.check(attempt, now=clock.now())
        user = User.objects.filter(username=username).first()
        with _password_slot():
            # Check again: attempts before this one may have failed meanwhile.
            sign_in_attempts.check(attempt, now=clock.now())
            is_right = _is_right(user, password)
        if user and is_right and self.user_can_authenticate(user):
            # Otherwise a right password would allow more guesses of the code.
            if not second_factor.is_set(user):
                sign_in_attempts.forget(attempt)
            return user
        sign_in_attempts.note_failure(attempt, account=user, now=clock.now())
        return None


class ProviderBackend(ModelBackend):
    """Load the users of OpenID sessions; check no password."""

    def authenticate(self, *_: Any, **__: Any) -> None:
        """Sign in no user: return None.

        People of an OpenID provider are admitted by `single_sign_on_accounts`.
        """


@contextmanager
def _password_slot() -> Iterator[None]:
    """Hash a password in this block when few others do; raise TooManySignIns."""
    _release_connection()
    if not _slots.acquire(timeout=LONGEST_WAIT_SECONDS):
        raise TooManySignIns
    try:
        yield
    finally:
        _slots.release()


def _is_right(user: User | None, password: str) -> bool:
    """Tell whether the password is right, as slowly without a user as with one."""
    _release_connection()
    if user is None:
        User().set_password(password)  # take as long as for an existing account
        return False
    return user.check_password(password)


def _release_connection() -> None:
    """Close the database connection while hashing, outside of transactions."""
    if not connection.in_atomic_block:
        connection.close()
