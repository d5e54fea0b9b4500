"""Celery: the headers of a task (protocol 2). It says what ran, never why it failed.

Its names are anybody's words, so only a message that has them all is taken for a task.
"""

from __future__ import annotations

from collections.abc import Collection

from apps.brokers.vocabularies.story import Found, Told, one_more

NAME = "celery"

_EVERY_TASK_HAS = ("lang", "task", "id")


def told(found: Found) -> Told:
    if not _is_task(found):
        return Told()
    return Told(
        attempts=one_more(found.count("retries")),
        message_type=found.text("task"),
    )


def wrote(found: Found) -> Collection[bytes]:
    # Optional, and 0 without: with it the task would have no retry left.
    return found.among(("retries",)) if _is_task(found) else ()


def _is_task(found: Found) -> bool:
    return all(name in found for name in _EVERY_TASK_HAS)
