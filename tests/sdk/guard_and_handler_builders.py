"""Helpers of the guard tests: guards of a server, handlers, and messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from poisonguard import Guard, RetryPolicy
from tests.sdk.fake_poisonweb_server import KEY, FakeServer

Message = dict[str, Any]
# As long as a real one, and of the same letters.
REDRIVE = (
    "123e4567-e89b-12d3-a456-426614174000.Zm9yIHRlc3RzIG9ubHk_LT-ub2JvZHkgc2lnbmVkIHQ"
)

AT_ONCE = RetryPolicy(max_attempts=2, base=0.001, cap=0.001)


def message(bookmark: str = "b-1", **members: Any) -> Message:
    return {"bookmark": bookmark, "body": b'{"id": 13}', "headers": {}, **members}


def redriven(bookmark: str = "b-9", **members: Any) -> Message:
    return message(bookmark, headers={"x-poisonweb-redrive": REDRIVE}, **members)


@contextmanager
def guarding(server: FakeServer, **options: Any) -> Iterator[Guard]:
    wishes: dict[str, Any] = {
        "topic": "orders",
        "consumer_group": "billing",
        "client_name": "billing-1",
        "url": server.url,
        "api_key": KEY,
        "journal": None,
        "policy": AT_ONCE,
        "start_timeout": 60.0,
        **options,
    }
    with Guard(**wishes) as guard:
        yield guard
        if server.is_up:  # but busy, maybe: tests look at what came with the end
            guard.close(60)


class Handler:
    """Records the bookmarks of its calls, and raises the given errors."""

    def __init__(self, *errors: BaseException | None) -> None:
        self.calls: list[str] = []
        self._errors = iter(errors)
        self.otherwise: Callable[[Message], object] = lambda _: None

    def __call__(self, message: Message) -> None:
        self.calls.append(message["bookmark"])
        error = next(self._errors, None)
        if error is not None:
            raise error
        self.otherwise(message)


class Failing(Handler):
    """Raises the same error for every message, or for the named ones."""

    def __init__(self, error: Exception, *bookmarks: str) -> None:
        super().__init__()
        self._error = error
        self._bookmarks = bookmarks

    def __call__(self, message: Message) -> None:
        super().__call__(message)
        if not self._bookmarks or message["bookmark"] in self._bookmarks:
            raise self._error
