"""Asking a broker itself, while somebody waits: is it there, and what does it have.

Never inside a transaction, and never for long: a client that hangs is left behind in a
thread of its own. What a client says goes through `concealed`, though none should tell
a secret.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TypeVar
from urllib.parse import quote, unquote, urlsplit

from apps.brokers import secrets
from apps.brokers.models import Broker
from apps.brokers.ports import BrokerAdmin, FoundTopic
from apps.brokers.services import topics
from apps.core.errors import Invalid, PoisonwebError, Refused, Unavailable

PING_SECONDS = 10.0
DISCOVER_SECONDS = 30.0
# Questions that hang at the same time; whoever asks beyond that is told so.
MOST_ASKED = 16
CONCEALED = "•••"
# What is shorter stands in ordinary words, too.
SHORTEST_SECRET = 3
SECRET_NAMES = ("key", "secret", "signature", "password", "token")

T = TypeVar("T")

_asking = threading.BoundedSemaphore(MOST_ASKED)


@dataclass(frozen=True, kw_only=True, slots=True)
class Reached:
    """What came of a try: `told` is the broker's own words, or what is wrong.

    It `answers` also where it refuses something.
    """

    ok: bool
    detail: str
    milliseconds: int
    answers: bool


def reach(*, broker: Broker, within: float = PING_SECONDS) -> Reached:
    """Reach a broker with its credentials, and tell in words how that went."""
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
    """List what a broker has; raises Unavailable or Refused, without its secrets."""
    return _ask(broker, lambda admin: admin.discover(), within=within)


def concealed(text: str, *, url: str) -> str:
    """Blot out of a text what is secret in an address."""
    for secret in sorted(_secrets_in(url), key=len, reverse=True):
        text = text.replace(secret, CONCEALED)
    return text


def _ask(broker: Broker, question: Callable[[BrokerAdmin], T], *, within: float) -> T:
    url = secrets.revealed(broker.url)
    try:
        return _answer(partial(_ask_admin, broker, question), within=within)
    except Unavailable as away:
        raise Unavailable(concealed(str(away), url=url)) from None
    except Invalid as wrong:
        raise Invalid(wrong.field, concealed(wrong.remedy, url=url)) from None
    except Refused as refusal:
        raise Refused(concealed(str(refusal), url=url)) from None


def _ask_admin(broker: Broker, question: Callable[[BrokerAdmin], T]) -> T:
    admin = topics.broker_admin_of(broker)
    try:
        return question(admin)
    finally:
        admin.close()


def _answer(ask: Callable[[], T], *, within: float) -> T:
    """Ask in a thread; raises Unavailable where no answer comes in time."""
    if not _asking.acquire(blocking=False):
        raise Unavailable("Too many brokers are being asked; try again in a moment.")
    answer: Future[T] = Future()
    threading.Thread(target=_settle, args=(answer, ask), daemon=True).start()
    try:
        return answer.result(timeout=within)
    except TimeoutError:
        raise Unavailable(f"It did not answer within {within:g} s.") from None


def _settle(answer: Future[T], ask: Callable[[], T]) -> None:
    try:
        answer.set_result(ask())
    except BaseException as error:  # noqa: BLE001 - raised on to who waits
        answer.set_exception(error)
    finally:
        _asking.release()


def _in_words(trouble: PoisonwebError) -> str:
    return trouble.remedy if isinstance(trouble, Invalid) else str(trouble)


def _secrets_in(url: str) -> Iterator[str]:
    values = [_password(url), *_values(url)]
    spellings = [
        word for each in values for word in (each, unquote(each), quote(each, safe=""))
    ]
    yield from (word for word in {url, *spellings} if len(word) >= SHORTEST_SECRET)


def _password(url: str) -> str:
    try:
        return urlsplit(url).password or ""
    except ValueError:
        return ""


def _values(url: str) -> Iterator[str]:
    for pair in url.replace("?", ";").replace("&", ";").split(";"):
        name, _, value = pair.partition("=")
        if any(word in name.lower() for word in SECRET_NAMES):
            yield value
