"""Ask a broker whether it answers and what it has, while a person waits.

Never call this inside a transaction. A client that hangs is left behind in its own
thread. Texts of clients go through `conceal_secrets`, in case one quotes a secret.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TypeVar
from urllib.parse import quote, unquote, urlsplit

from apps.brokers import sealed_addresses
from apps.brokers.adapter_contract import BrokerAdmin, FoundTopic
from apps.brokers.models import Broker
from apps.brokers.services import topics_and_routing_publisher
from apps.core.bounded_threads import BoundedThreads
from apps.core.errors import Invalid, PoisonwebError, Refused, Unavailable

PING_SECONDS = 10.0
DISCOVER_SECONDS = 30.0
# Calls that may run at the same time; further ones are refused.
MOST_ASKED = 16
CONCEALED = "•••"
# Shorter values also occur in ordinary words.
SHORTEST_SECRET = 3
SECRET_NAMES = ("key", "secret", "signature", "password", "token")

T = TypeVar("T")

_asking = BoundedThreads(MOST_ASKED, name="ask a broker")


@dataclass(frozen=True, kw_only=True, slots=True)
class Reached:
    """Result of a connectivity test; `detail` is the broker's answer or what is wrong.

    `answers` is also true where the broker refuses something.
    """

    ok: bool
    detail: str
    milliseconds: int
    answers: bool


def reach(*, broker: Broker, within: float = PING_SECONDS) -> Reached:
    """Connect to a broker with its credentials and report the result."""
    began = time.monotonic()
    trouble: PoisonwebError | None = None
    try:
        detail = _ask(broker, lambda admin: admin.ping(), within=within)
    except PoisonwebError as wrong:
        detail, trouble = _in_words(wrong), wrong
    lasted = time.monotonic() - began
    return Reached(
        ok=trouble is None,
        detail=detail,
        milliseconds=round(lasted * 1000),
        answers=trouble is None or isinstance(trouble, Refused),
    )


def discover(*, broker: Broker, within: float = DISCOVER_SECONDS) -> list[FoundTopic]:
    """List the topics of a broker; raise Unavailable or Refused without secrets."""
    return _ask(broker, lambda admin: admin.discover(), within=within)


def conceal_secrets(text: str, *, url: str) -> str:
    """Replace the secrets of a broker's address in a text."""
    for secret in sorted(_secrets_in(url), key=len, reverse=True):
        text = text.replace(secret, CONCEALED)
    return text


def _ask(broker: Broker, question: Callable[[BrokerAdmin], T], *, within: float) -> T:
    """Put a question to a broker's admin in a thread, and return the answer.

    Errors hide the secrets of the broker's address.
    """
    url = sealed_addresses.reveal(broker.url)
    try:
        return _call_within(partial(_ask_admin, broker, question), within=within)
    except Unavailable as away:
        raise Unavailable(conceal_secrets(str(away), url=url)) from None
    except Invalid as wrong:
        raise Invalid(wrong.field, conceal_secrets(wrong.remedy, url=url)) from None
    except Refused as refusal:
        raise Refused(conceal_secrets(str(refusal), url=url)) from None


def _ask_admin(broker: Broker, question: Callable[[BrokerAdmin], T]) -> T:
    """Connect to a broker, put a question to its admin, and close the connection."""
    admin = topics_and_routing_publisher.broker_admin_of(broker)
    try:
        return question(admin)
    finally:
        admin.close()


def _call_within(ask: Callable[[], T], *, within: float) -> T:
    """Call a function in a thread; raise Unavailable without an answer in time."""
    answer = _asking.start(ask)
    if answer is None:
        raise Unavailable("Too many brokers are being asked; try again in a moment.")
    try:
        return answer.result(timeout=within)
    except TimeoutError:
        raise Unavailable(f"It did not answer within {within:g} s.") from None


def _in_words(trouble: PoisonwebError) -> str:
    """Return a broker's error as text for people, with its remedy."""
    return trouble.remedy if isinstance(trouble, Invalid) else str(trouble)


def _secrets_in(url: str) -> Iterator[str]:
    """Yield the secrets of a broker's address, in each spelling of an error."""
    values = [_password_in(url), *_secret_values(url)]
    spellings = [
        word for each in values for word in (each, unquote(each), quote(each, safe=""))
    ]
    yield from (word for word in {url, *spellings} if len(word) >= SHORTEST_SECRET)


def _password_in(url: str) -> str:
    """Return the password of a broker's address, "" without one."""
    try:
        return urlsplit(url).password or ""
    except ValueError:
        return ""


def _secret_values(url: str) -> Iterator[str]:
    """Yield an address's parameters whose name says that they are secret."""
    for pair in url.replace("?", ";").replace("&", ";").split(";"):
        name, _, value = pair.partition("=")
        if any(word in name.lower() for word in SECRET_NAMES):
            yield value
