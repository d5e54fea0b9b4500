"""How long each statement keeps a processor of Postgres busy, however busy ours are.

A statement's own time says little on a machine that does other things as well. Linux
counts what each process has used, and each session of Postgres is a process of its own.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from django.db import connection
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

TICKS = os.sysconf("SC_CLK_TCK")
# Behind the name, which may hold blanks: state is field 3, utime 14 and stime 15.
USER_TIME, SYSTEM_TIME = 14 - 3, 15 - 3
BETWEEN = "what is done between two statements: COPY, COMMIT"

Execute = Callable[[str, Any, bool, dict[str, Any]], Any]


@dataclass(kw_only=True)
class Statements:
    """Seconds of processor time by statement: the most at once, and all in all."""

    worst: dict[str, float] = field(default_factory=dict)
    total: dict[str, float] = field(default_factory=dict)

    def add(self, statement: str, seconds: float) -> None:
        text = re.sub(r"\s+", " ", statement).strip()
        self.worst[text] = max(seconds, self.worst.get(text, 0.0))
        self.total[text] = seconds + self.total.get(text, 0.0)

    def slow(self, *, at_once: float, in_all: float) -> dict[str, tuple[float, float]]:
        """Return statements that took longer than this, at once or in all."""
        return {
            text: (worst, self.total[text])
            for text, worst in self.worst.items()
            if worst > at_once or self.total[text] > in_all
        }


@contextmanager
def measured() -> Iterator[Statements]:
    """Measure what this thread's connection does, and each that is made meanwhile."""
    statements = Statements()
    with ExitStack() as stack:

        def watch(connection: BaseDatabaseWrapper, **_: object) -> None:
            stack.enter_context(connection.execute_wrapper(_Watch(statements)))

        connection.ensure_connection()
        watch(connection)
        connection_created.connect(watch)
        stack.callback(connection_created.disconnect, watch)
        yield statements


class _Watch:
    def __init__(self, statements: Statements) -> None:
        self.statements = statements
        self.session: tuple[int, float] | None = None

    def __call__(
        self,
        execute: Execute,
        sql: str,
        params: Any,
        many: bool,
        context: dict[str, Any],
    ) -> Any:
        pid = context["connection"].connection.info.backend_pid
        before = used_by(pid)
        if self.session and self.session[0] == pid:
            self.statements.add(BETWEEN, before - self.session[1])
        try:
            return execute(sql, params, many, context)
        finally:
            after = used_by(pid)
            self.session = (pid, after)
            self.statements.add(sql, after - before)


def used_by(pid: int) -> float:
    """Give the processor time that a session of Postgres has used, in seconds.

    Where Postgres is on another machine, give the time that passes: it is never less.
    """
    try:
        before, _, after = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")
    except FileNotFoundError:
        return time.perf_counter()
    if "(postgres" not in before:
        return time.perf_counter()
    fields = after.split()
    return (int(fields[USER_TIME]) + int(fields[SYSTEM_TIME])) / TICKS
