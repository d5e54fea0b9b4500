"""How a password is checked: few at a time, in a turn, and with no session of Postgres.

A slow hash is what makes guessing slow. Unbounded, forty-eight strangers who send any
password keep both processors and every session from everybody else.
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
from apps.team import second_factor, sign_in
from apps.team.errors import TooManySignIns
from apps.team.models import User
from apps.team.sign_in import Attempt

AT_ONCE = 2
LONGEST_WAIT_SECONDS = 10.0
_turns = BoundedSemaphore(AT_ONCE)


class PasswordBackend(ModelBackend):
    """Django's, but for the turns and the delays; raises TooManySignIns for both."""

    def authenticate(
        self,
        request: HttpRequest | None,
        username: str | None = None,
        password: str | None = None,
        page: str = "",
        **_: Any,
    ) -> User | None:
        if username is None or password is None:
            return None
        attempt = Attempt.of_password(request, account=username, page=page)
        sign_in.check(attempt, now=clock.now())
        user = User.objects.filter(username=username).first()
        with _turn():
            # Those who came before may have been wrong as well.
            sign_in.check(attempt, now=clock.now())
            is_right = _is_right(user, password)
        if user and is_right and self.user_can_authenticate(user):
            # Else a right password would buy more guesses of the code.
            if not second_factor.is_set(user):
                sign_in.forget(attempt)
            return user
        sign_in.note_failure(attempt, account=user, now=clock.now())
        return None


class ProviderBackend(ModelBackend):
    """Keeps who came through the OpenID provider signed in; checks no password."""

    def authenticate(self, *_: Any, **__: Any) -> None:
        """Let nobody in: `single_sign_on` does."""


@contextmanager
def _turn() -> Iterator[None]:
    _give_session_back()
    if not _turns.acquire(timeout=LONGEST_WAIT_SECONDS):
        raise TooManySignIns
    try:
        yield
    finally:
        _turns.release()


def _is_right(user: User | None, password: str) -> bool:
    _give_session_back()
    if user is None:
        User().set_password(password)  # it takes as long as for an account that exists
        return False
    return user.check_password(password)


def _give_session_back() -> None:
    if not connection.in_atomic_block:
        connection.close()
