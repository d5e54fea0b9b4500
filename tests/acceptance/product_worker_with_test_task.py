"""Celery's worker as we run it, with a task that leaves a mark for a test.

Its arguments are those of Celery's command; MARKS is the address of a Redis for marks.
"""

from __future__ import annotations

import os
import sys

import redis

from poisonweb.celery import app

MARK = "tests.mark"


@app.task(name=MARK)
def mark(word: str) -> None:
    """Write a word to a file, so that the test sees that the task ran."""
    with redis.Redis.from_url(os.environ["MARKS"]) as client:
        client.rpush("marks", word)


if __name__ == "__main__":
    app.start(sys.argv[1:])
