"""Find dead-letter queues by the arguments, policies and bindings of queues."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True, kw_only=True, slots=True)
class RabbitQueue:
    """A queue as it was declared; `exchange` is None where it drops its dead letters.

    `routing_key` is None where dead letters keep the one they came with.
    """

    name: str
    exchange: str | None
    routing_key: str | None
    delivery_limit: int | None

    @classmethod
    def of(cls, details: Mapping[str, Any]) -> Self:
        """Read where a queue's dead letters go, from its arguments and policy."""

        def setting(name: str) -> Any:
            # Arguments take precedence over policies.
            return arguments.get(f"x-{name}", policy.get(name))

        arguments = _mapping_or_empty(details.get("arguments"))
        policy = _mapping_or_empty(details.get("effective_policy_definition"))
        limit = setting("delivery-limit")
        return cls(
            name=details["name"],
            exchange=_text_or_none(setting("dead-letter-exchange")),
            routing_key=_text_or_none(setting("dead-letter-routing-key")),
            delivery_limit=limit if isinstance(limit, int) else None,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class RabbitExchange:
    """An exchange, and the queues bound to it with their routing keys."""

    kind: str
    bindings: Sequence[tuple[str, str]]

    @classmethod
    def of(cls, kind: str, bindings: Sequence[Mapping[str, Any]]) -> Self:
        """Read to which queues an exchange of RabbitMQ leads, sorted."""
        queues = (one for one in bindings if one["destination_type"] == "queue")
        pairs = sorted((one["destination"], one["routing_key"]) for one in queues)
        return cls(kind=kind, bindings=pairs)


def dead_letter_queue_of(
    queue: RabbitQueue, exchange_of: Callable[[str], RabbitExchange | None]
) -> str:
    """Return the queue that gets the dead letters of a RabbitMQ queue, or "".

    Of several, it is the first by name. Where only the messages hold their routing key,
    that is assumed to be the queue's name.
    """
    if queue.exchange is None:
        return ""
    key = queue.name if queue.routing_key is None else queue.routing_key
    if not queue.exchange:
        return key if key != queue.name else ""
    exchange = exchange_of(queue.exchange)
    if exchange is None:
        return ""
    fit = [
        name for name, bound in exchange.bindings if _passes(exchange.kind, bound, key)
    ]
    every = {name for name, _ in exchange.bindings}
    if not fit and queue.routing_key is None and len(every) == 1:
        # Only one queue is bound, so the key does not matter.
        fit = list(every)
    return next((name for name in fit if name != queue.name), "")


def _passes(kind: str, bound: str, key: str) -> bool:
    """Tell whether an exchange of this kind passes a key to a binding."""
    match kind:
        case "fanout" | "headers":
            return True
        case "topic":
            return _matches_words(bound.split("."), key.split("."))
        case _:
            return bound == key


def _matches_words(pattern: Sequence[str], words: Sequence[str]) -> bool:
    """Match a routing key with a topic pattern: `*` is one word, `#` any words."""
    if not pattern:
        return not words
    if pattern[0] == "#":
        return any(
            _matches_words(pattern[1:], words[n:]) for n in range(len(words) + 1)
        )
    same = bool(words) and pattern[0] in {"*", words[0]}
    return same and _matches_words(pattern[1:], words[1:])


def _mapping_or_empty(value: object) -> Mapping[str, Any]:
    """Return a value from RabbitMQ's plugin if it is a mapping, else {}."""
    # Some versions write an empty one as [].
    return value if isinstance(value, Mapping) else {}


def _text_or_none(value: object) -> str | None:
    """Return a value from RabbitMQ's plugin if it is a text, else None."""
    return value if isinstance(value, str) else None
