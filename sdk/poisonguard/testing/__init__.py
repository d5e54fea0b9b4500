"""A Poisonweb for the tests of your consumer, in this process and without a database.

    with FakePoisonweb() as poisonweb:
        with Guard(
            topic="orders",
            consumer_group="billing",
            url=poisonweb.url,
            api_key=poisonweb.key,
            journal=None,
        ) as guard:
            guard.handle({"bookmark": "1", "body": b"bad"}, handler)
    assert [report.bookmark for report in poisonweb.failures] == ["1"]

It speaks the protocol (`python -m poisonguard_conformance` passes) on a free port of
127.0.0.1, keeps what it is told in memory, and asks no other consumer about a suspected
failure. It publishes nothing: a requeued message is one that a test sends with the
header `x-poisonweb-redrive: <poisonweb.requeue()>`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from poisonguard.contract import (
    Confirmation,
    FailureReport,
    MatcherKind,
    Skip,
    parse_confirmation,
    parse_failure,
    parse_skip,
)
from poisonguard.testing.fake_poisonweb_api import KEY, Double

__all__ = ["FakePoisonweb"]

WAIT = 30.0
POLL_SECONDS = 0.01


class FakePoisonweb:
    """Poisonweb as a consumer sees it, from `with` to its end."""

    def __init__(self, *, key: str = KEY) -> None:
        self._double = Double()
        self._double.key = self.key = key

    def __enter__(self) -> Self:
        self._double.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        frames: TracebackType | None,
    ) -> None:
        self._double.stop()

    @property
    def url(self) -> str:
        """Return where the fake Poisonweb listens: the same after it was away."""
        return self._double.url

    @property
    def listening(self) -> int:
        """Return how many guards follow the skip list now."""
        return self._double.stream.readers

    # What consumers sent

    @property
    def failures(self) -> list[FailureReport]:
        """Return the accepted failure reports in their order, each once."""
        with self._double.changed:
            return [
                parse_failure(item) for item in self._double.reports.failures.values()
            ]

    @property
    def confirmations(self) -> list[Confirmation]:
        """Return which requeued messages were handled."""
        with self._double.changed:
            items = list(self._double.reports.confirmations.values())
        return [parse_confirmation(item) for item in items]

    @property
    def counts(self) -> Mapping[str, int]:
        """Return how many messages were handled, failed, skipped and retried.

        A guard tells that once a minute, and when it is closed.
        """
        with self._double.changed:
            return dict(self._double.reports.totals())

    @property
    def skips(self) -> list[Skip]:
        """Return the skips in force now, by hand or as the consequence of a failure."""
        with self._double.changed:
            return [parse_skip(item) for item in self._double.skip_list.skips.values()]

    def wait_for(self, condition: Callable[[], object], timeout: float = WAIT) -> None:
        """Wait until a condition is true; raise AssertionError where it never is."""
        # Not the double's own wait, which lets no request in while it looks.
        deadline = time.monotonic() + timeout
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"it did not come to be in {timeout} s")
            time.sleep(POLL_SECONDS)

    # Actions of people, and faults

    def skip(
        self,
        topic: str,
        value: object,
        *,
        kind: MatcherKind | str = MatcherKind.BOOKMARK,
        consumer_group: str | None = None,
        handler_version: str | None = None,
        reason: str = "by a test",
    ) -> Skip:
        """Add a skip; running guards learn it at once.

        The value is a bookmark, or with another `kind` a message id, the hexadecimal
        SHA-256 of a body, or a rule such as {"pointer": "/id", "equals": 13}.
        """
        request = {
            "topic": topic,
            "matcher": {"kind": str(kind), "value": value},
            "consumer_group": consumer_group,
            "handler_version": handler_version,
            "reason": reason,
        }
        return parse_skip(self._double.call("POST", "/skips", [], request))

    def unskip(self, skip: Skip) -> None:
        """End a skip; running guards learn it at once."""
        self._double.skip_list.remove(skip.id or 0)

    def requeue(self) -> str:
        """Return a value for the header of a requeued message.

        Confirmations of other values are rejected.
        """
        return self._double.reports.new_redrive_header()

    @contextmanager
    def away(self) -> Iterator[None]:
        """Be down as a server within the block: no port listens, connections break."""
        self._double.stop()
        try:
            yield
        finally:
            self._double.start()

    def reject(
        self, when: Callable[[FailureReport], bool], detail: str = "by a test"
    ) -> None:
        """From now on, reject the failure reports for which `when` returns true.

        Their messages are released, not poisoned. The last call counts.
        """

        def judge(item: dict[str, object]) -> str | None:
            return detail if when(parse_failure(item)) else None

        with self._double.changed:
            self._double.reports.rejects = judge
