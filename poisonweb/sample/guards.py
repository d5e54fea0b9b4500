"""The guards of the sample's consumers, with their settings."""

from __future__ import annotations

from pathlib import Path

from poisonguard import Guard, RetryPolicy
from poisonguard.readers.redis_streams import RedisStreamsReader
from poisonweb.sample.consumers_and_their_topics import SampleSubscription

# A back end that timed out may answer the next time. Other errors are in the message.
POLICY = RetryPolicy(
    max_attempts=3,
    base=0.1,
    cap=0.4,
    fatal=(ArithmeticError, LookupError, TypeError, ValueError),
)


class Guards:
    """Make guards for the Poisonweb at `port`, with their files in `var`."""

    def __init__(self, *, port: int, var: Path) -> None:
        self._port = port
        self._var = var

    @property
    def key_file(self) -> Path:
        """Return the path of the file with the API key of the sample's programs."""
        return self._var / "sample-api-key"

    def make(self, subscription: SampleSubscription, *, version: str) -> Guard:
        """Build the guard of a Redis consumer of the sample.

        There is one for each release of its handler.
        """
        return Guard(
            topic=subscription.topic,
            consumer_group=subscription.consumer_group,
            client_name=subscription.client_name,
            version=version,
            url=f"http://127.0.0.1:{self._port}",
            api_key=self._api_key,
            reader=RedisStreamsReader(),
            policy=POLICY,
            # A newcomer requeues many messages that fail again: no consumer is broken.
            breaker=None,
            when_away="hold",
            # A kill must not lose a confirmation, or a stop a minute of counters.
            spool=self._var / "sample-spool",
            concurrency=1,
        )

    def _api_key(self) -> str:
        """Read the sample's present API key: a new one may replace it at any time."""
        return self.key_file.read_text(encoding="ascii")
