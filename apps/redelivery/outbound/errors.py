"""What became of a call that has no answer.

`RequestNotSent` and `OutcomeUnknown` are all that a call to a back end raises, beside
`Invalid` for a request that is no HTTP. The first may always be tried again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from apps.core.errors import Refused, Unavailable


class RequestNotSent(Unavailable):
    """The back end was not reached: it has got no byte of the request."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LateAnswer:
    """An answer that came after the time limit of its call.

    `body` has its first bytes; `is_complete` tells whether these are all.
    """

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes
    is_complete: bool


async def _no_answer() -> None:
    """Return None at once: no late answer of a back end is awaited."""


class OutcomeUnknown(Unavailable):
    """The request was written, in part or whole, and its answer did not come whole.

    The back end may have done what was asked, or not. Await `late_answer()` for what it
    still answers: it returns at the latest when the call's `late_for` is over, and None
    if no answer came, or if the call did not ask for late ones.
    """

    def __init__(
        self,
        message: str,
        *,
        late_answer: Callable[[], Awaitable[LateAnswer | None]] = _no_answer,
    ) -> None:
        super().__init__(message)
        self.late_answer = late_answer


class GatewayLoop(Refused):
    """The request passed through gateways too often: an endpoint leads back to one."""
