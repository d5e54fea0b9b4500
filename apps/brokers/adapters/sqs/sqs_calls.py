"""Calls of Amazon SQS in one region, one attempt each, with classified errors.

botocore would repeat a call by itself, which sends messages twice; here it must not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import unquote, urlsplit

from boto3.session import Session
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    CredentialRetrievalError,
    EndpointConnectionError,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
    ProfileNotFound,
    ProxyConnectionError,
)
from botocore.loaders import create_loader
from botocore.session import Session as BotocoreSession

from apps.brokers.adapters import http_pools_to_checked_addresses
from apps.brokers.address_policy import Dial, usual_dial
from apps.brokers.errors import MaybeSent, NotSent, QueueMissing, Rejected
from apps.core.errors import Invalid
from apps.core.text_cleaning import one_line

CONNECT_SECONDS = 5.0
# SQS' own limit of waiting for a message, and time for its answer to arrive.
LONGEST_POLL = 20
REPLY_SECONDS = LONGEST_POLL + 10.0
# SQS' limit of entries in one batch.
MOST_AT_ONCE = 10

# Shared descriptions of AWS' services: 8 MB, and most of a client's start-up time.
_DESCRIPTIONS = create_loader()

_PREFIX = "AWS.SimpleQueueService."
_ENDPOINT = re.compile(
    r"https?://([A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*|\[[0-9A-Fa-f:]+\])(:\d{1,5})?/?"
)
_REGION = re.compile(r"[a-z]{2,}(-[a-z0-9]+)*")

# Errors from before anything left this machine.
_NEVER_SENT = (
    ConnectTimeoutError,
    CredentialRetrievalError,
    EndpointConnectionError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
    ProxyConnectionError,
)
# Codes for unknown or expired credentials: they say nothing about a message.
_UNKNOWN_CALLER = frozenset(
    {
        "ExpiredToken",
        "ExpiredTokenException",
        "IncompleteSignature",
        "InvalidAccessKeyId",
        "InvalidClientTokenId",
        "InvalidSecurity",
        "InvalidSignatureException",
        "MissingAuthenticationToken",
        "MissingAuthenticationTokenException",
        "OptInRequired",
        "RequestExpired",
        "SignatureDoesNotMatch",
        "UnrecognizedClientException",
    }
)
_THROTTLED = frozenset(
    {
        "KmsThrottled",
        "OverLimit",
        "RequestLimitExceeded",
        "RequestThrottled",
        "SlowDown",
        "ThrottledException",
        "Throttling",
        "ThrottlingException",
        "TooManyRequestsException",
    }
)
MISSING = frozenset({"NonExistentQueue", "QueueDoesNotExist"})
# Codes about a whole queue, whatever the message.
_OF_A_QUEUE = MISSING | {
    "AccessDenied",
    "AccessDeniedException",
    "InvalidAddress",
    "KmsAccessDenied",
    "KmsDisabled",
    "KmsInvalidKeyUsage",
    "KmsInvalidState",
    "KmsNotFound",
    "KmsOptInRequired",
    "QueueDeletedRecently",
}


class SqsRejected(Rejected):
    """SQS refused the call."""

    def __init__(self, code: str, words: str, *, about: str) -> None:
        self.code = code
        super().__init__(f"SQS refuses {about}: {_format_error(code, words)}")

    @property
    def concerns_queue(self) -> bool:
        """Tell whether SQS refused the whole queue, not one message."""
        return self.code in _OF_A_QUEUE


class SqsQueueMissing(SqsRejected, QueueMissing):
    """SQS has no such queue."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SqsAddress:
    """A region of SQS and the keys for it; without keys, those of this machine.

    A cloud's metadata service is asked for keys only if `may_ask_metadata`.
    """

    region: str
    access_key: str | None = field(default=None, repr=False)
    secret_key: str | None = field(default=None, repr=False)
    endpoint: str | None = None
    dial: Dial = field(default=usual_dial, repr=False, compare=False)
    may_ask_metadata: bool = False

    @classmethod
    def of(
        cls,
        url: str,
        options: Mapping[str, object],
        *,
        dial: Dial = usual_dial,
        may_ask_metadata: bool = False,
    ) -> Self:
        """Parse sqs://[access-key:secret-key@]region and options; raise Invalid."""
        # Errors of the URL parser quote the text, which may hold a secret.
        try:
            parts = urlsplit(url)
            region, port = parts.hostname or "", parts.port
        except ValueError:
            raise _unusable_error() from None
        rest = parts.path.strip("/") or parts.query or parts.fragment or port
        alone = bool(parts.username) != bool(parts.password)
        if parts.scheme != "sqs" or not _REGION.fullmatch(region) or rest or alone:
            raise _unusable_error()
        return cls(
            region=region,
            access_key=unquote(parts.username) if parts.username else None,
            secret_key=unquote(parts.password) if parts.password else None,
            endpoint=_parse_endpoint(options),
            dial=dial,
            may_ask_metadata=may_ask_metadata,
        )

    def __str__(self) -> str:
        name = f"Amazon SQS in {self.region}"
        return f"{name} at {self.endpoint}" if self.endpoint else name


class SqsWire:
    """A client of SQS at one address, for one thread; it connects at the first call."""

    def __init__(self, address: SqsAddress) -> None:
        self.address = address
        self._client: Any = None
        self._urls: dict[str, str] = {}

    def call(self, action: str, *, about: str, **parameters: object) -> dict[str, Any]:
        """Call an action of SQS once; `about` is what a refusal names.

        Raises `SqsRejected` for a refusal, `NotSent` where nothing was done, and
        `MaybeSent` where that is unknown.
        """
        try:
            done: dict[str, Any] = getattr(self._client_of_boto(), action)(**parameters)
        except ClientError as error:
            raise self._translate(error, about) from error
        except ParamValidationError as error:
            raise SqsRejected("ParamValidation", str(error), about=about) from error
        except _NEVER_SENT as error:
            raise NotSent(f"{self.address} is away: {one_line(str(error))}") from error
        except (BotoCoreError, OSError) as error:
            raise MaybeSent(
                f"{self.address} is away: {one_line(str(error))}"
            ) from error
        return done

    def queue_url(self, queue: str) -> str:
        """Return the URL of an SQS queue; raise `SqsRejected` where it is missing."""
        if queue not in self._urls:
            about = f"GetQueueUrl {queue}"
            reply = self.call("get_queue_url", about=about, QueueName=queue)
            self._urls[queue] = reply["QueueUrl"]
        return self._urls[queue]

    def call_queue(
        self, queue: str, action: str, *, about: str = "", **parameters: object
    ) -> dict[str, Any]:
        """Call an action of SQS for a queue, by the queue's name."""
        url = self.queue_url(queue)
        about = about or f"{action} {queue}"
        try:
            return self.call(action, about=about, QueueUrl=url, **parameters)
        except SqsQueueMissing:
            self._urls.pop(queue, None)
            raise

    def attributes(self, queue: str, *names: str) -> dict[str, str]:
        """Ask SQS for attributes of a queue, by name."""
        reply = self.call_queue(
            queue, "get_queue_attributes", AttributeNames=list(names)
        )
        attributes: dict[str, str] = reply.get("Attributes", {})
        return attributes

    def close(self) -> None:
        """Close the client of SQS; the next call makes another."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _client_of_boto(
        self,
    ) -> Any:  # boto3 makes its clients at run time, without types
        """Return boto's client, made with the first call, without retries."""
        if self._client is None:
            core = BotocoreSession()
            core.register_component("data_loader", _DESCRIPTIONS)
            if not self.address.may_ask_metadata:
                _ask_no_metadata(core)
            session = Session(
                botocore_session=core,
                aws_access_key_id=self.address.access_key,
                aws_secret_access_key=self.address.secret_key,
                region_name=self.address.region,
            )
            once = Config(
                connect_timeout=CONNECT_SECONDS,
                read_timeout=REPLY_SECONDS,
                retries={"total_max_attempts": 1, "mode": "standard"},
                user_agent_extra="poisonweb",
            )
            endpoint = self.address.endpoint
            self._client = session.client("sqs", endpoint_url=endpoint, config=once)
            _check_addresses(self._client, self.address.dial)
        return self._client

    def _translate(
        self, error: ClientError, about: str
    ) -> NotSent | MaybeSent | SqsRejected:
        """Build our error that an error of boto stands for."""
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 500)
        details = error.response.get("Error", {})
        code, message = _code_of(details.get("Code", "")), details.get("Message", "")
        if not code or code.isdigit():
            # Without a code of AWS it is another service, which is not quoted.
            code, message = f"HTTP {status}", "what answers there is not SQS"
        words = _format_error(code, message)
        if code in _THROTTLED or code in _UNKNOWN_CALLER:
            return NotSent(f"{self.address} says: {words}")
        if status >= 500:
            return MaybeSent(f"{self.address} says: {words}")
        kind = SqsQueueMissing if code in MISSING else SqsRejected
        return kind(code, message, about=about)


def _ask_no_metadata(core: BotocoreSession) -> None:
    """Remove botocore's providers that ask a cloud for this machine's credentials."""
    providers = core.get_component("credential_provider")
    for name in ("iam-role", "container-role"):
        providers.remove(name)


def _check_addresses(client: Any, dial: Dial) -> None:
    """Make the SQS client connect by `dial`, for which botocore has no setting."""
    session = client._endpoint.http_session  # noqa: SLF001 - see above
    pools = session._pool_classes_by_scheme  # noqa: SLF001
    for scheme, pool in pools.items():
        pools[scheme] = http_pools_to_checked_addresses.derive_pool_class(pool, dial)


def is_final(failed: Mapping[str, Any]) -> bool:
    """Tell whether a failed entry of an SQS batch would fail again."""
    return bool(failed["SenderFault"]) and not is_throttled(failed)


def is_throttled(failed: Mapping[str, Any]) -> bool:
    """Tell whether SQS throttled this entry of a batch, so did nothing."""
    return _code_of(failed["Code"]) in _THROTTLED


def words_of(failed: Mapping[str, Any]) -> str:
    """Format the error of a failed SQS entry as one short line."""
    return _format_error(failed["Code"], failed.get("Message", ""))


def _code_of(code: str) -> str:
    """Return the code of SQS' error without its prefix."""
    return code.removeprefix(_PREFIX)


def _format_error(code: str, words: str) -> str:
    """Format SQS' error as one short line."""
    return one_line(f"{_code_of(code)}: {words}" if words else _code_of(code))


def _parse_endpoint(options: Mapping[str, object]) -> str | None:
    """Return the option `endpoint_url`, None without it; raise Invalid."""
    unknown = set(options) - {"endpoint_url"}
    if unknown:
        hint = 'the only option of sqs is "endpoint_url".'
        raise Invalid("options", f"{', '.join(sorted(unknown))} is unknown: {hint}")
    url = options.get("endpoint_url")
    if url is None:
        return None
    if not isinstance(url, str) or not _ENDPOINT.fullmatch(url):
        remedy = "endpoint_url must be http(s)://host[:port], without a secret."
        raise Invalid("options", remedy)
    return url


def _unusable_error() -> Invalid:
    """Build the error of an SQS address that cannot be used."""
    remedy = (
        "write sqs://access-key:secret-key@region, or sqs://region for this machine's "
        "own role"
    )
    return Invalid("url", f"{remedy}; percent-encode what is special in a key.")
