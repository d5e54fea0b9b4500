"""Celery: the headers of a task (protocol 2). They name the task, never the failure.

The names are common words, so only a message that has them all counts as a task.
"""

from __future__ import annotations

from collections.abc import Collection

from apps.brokers.failure_headers.story_type_and_header_values import (
    HeaderMap,
    PartialStory,
    attempts_of_retries,
)

NAME = "celery"

_EVERY_TASK_HAS = ("lang", "task", "id")


def read_story(headers: HeaderMap) -> PartialStory:
    """Read a Celery task's name and number of attempts; Celery names no error."""
    if not _is_task(headers):
        return PartialStory()
    return PartialStory(
        attempts=attempts_of_retries(headers.count("retries")),
        message_type=headers.text("task"),
    )


def failure_headers(headers: HeaderMap) -> Collection[bytes]:
    """Name Celery's header of retries, if the message is a task."""
    # The header is optional; without it the task starts at 0 retries.
    return headers.among(("retries",)) if _is_task(headers) else ()


def _is_task(headers: HeaderMap) -> bool:
    """Tell whether the headers are those of a Celery task."""
    return all(name in headers for name in _EVERY_TASK_HAS)
