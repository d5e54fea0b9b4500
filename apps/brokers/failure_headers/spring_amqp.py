"""Spring AMQP: the headers that RepublishMessageRecoverer adds.

No header names the exception's type: only the stack does, behind Spring's own wrapper.
"""

from __future__ import annotations

from collections.abc import Collection

from apps.brokers.failure_headers import stack_trace_exceptions
from apps.brokers.failure_headers.story_type_and_header_values import (
    HeaderMap,
    PartialStory,
)
from poisonguard import contract

NAME = "spring-amqp"

STACK = "x-exception-stacktrace"
MESSAGE = "x-exception-message"
EXCHANGE, ROUTING_KEY = "x-original-exchange", "x-original-routingkey"
# They belong to a past failure: a reader of the queue would take the message for one
# that has just failed, and Spring writes them again.
_FAILURE_HEADERS = (STACK, MESSAGE, EXCHANGE, ROUTING_KEY)
_WRAPPERS = frozenset(
    {
        "org.springframework.amqp.rabbit.support.ListenerExecutionFailedException",
        "org.springframework.amqp.rabbit.listener.exception."
        "ListenerExecutionFailedException",
        "org.springframework.amqp.AmqpRejectAndDontRequeueException",
        "java.lang.reflect.InvocationTargetException",
    }
)


def read_story(headers: HeaderMap) -> PartialStory:
    """Read a failure's exception from Spring AMQP's headers, without wrappers."""
    if STACK not in headers:
        return PartialStory()
    stack = headers.text(STACK)
    chain = list(stack_trace_exceptions.java(stack))
    named = [one for one in chain if one[0] not in _WRAPPERS] or chain or [("", "")]
    kind, words = named[0]
    return PartialStory(
        cause=contract.Cause.EXHAUSTED,
        exception_type=kind,
        exception_message=headers.text(MESSAGE) or words,
        exception_traceback=stack,
        origin=headers.first(ROUTING_KEY, EXCHANGE),
    )


def failure_headers(headers: HeaderMap) -> Collection[bytes]:
    """Name Spring AMQP's headers of a failure."""
    return headers.among(_FAILURE_HEADERS)
