"""The guards of the sample's consumers: what each is told."""

from __future__ import annotations

from pathlib import Path

from poisonguard import Guard, RetryPolicy
from poisonguard.readers.redis_streams import RedisStreamsReader
from poisonweb.sample.subscriptions import Subscription

# A back end that timed out may answer the next time. The rest is in the message.
POLICY = RetryPolicy(
    max_attempts=3,
    base=0.1,
    cap=0.4,
    fatal=(ArithmeticError, LookupError, TypeError, ValueError),
)


class Guards:
    """Makes guards for the Poisonweb at `port`; they keep what they must in `var`."""

    def __init__(self, *, port: int, var: Path) -> None:
        self._port = port
        self._var = var

    def make(self, subscription: Subscription, *, version: str) -> Guard:
        return Guard(
            topic=subscription.topic,
            consumer_group=subscription.consumer_group,
            client_name=subscription.client_name,
            version=version,
            url=f"http://127.0.0.1:{self._port}",
            api_key=self._api_key,
            reader=RedisStreamsReader(),
            policy=POLICY,
            # A newcomer requeues what must fail again, all at once: nobody is sick.
            breaker=None,
            when_away="hold",
            # No kill may cost a confirmation, and no stop a minute of counters.
            spool=self._var / "sample-spool",
            concurrency=1,
        )

    def _api_key(self) -> str:
        """Read the key that is there now: a new one may take its place."""
        return (self._var / "sample-api-key").read_text(encoding="ascii")
