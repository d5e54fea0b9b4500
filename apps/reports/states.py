"""States of a run, and their transitions. Constraints repeat them."""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


NEXT: dict[State, frozenset[State]] = {
    State.QUEUED: frozenset({State.RUNNING}),
    # Running again: a worker takes over the run of a worker that died.
    State.RUNNING: frozenset({State.RUNNING, State.DONE, State.FAILED}),
    State.DONE: frozenset(),
    State.FAILED: frozenset(),
}


def before(state: State) -> list[str]:
    """List the states that can change to this one."""
    return sorted(origin.value for origin, onward in NEXT.items() if state in onward)


UNFINISHED = (State.QUEUED.value, State.RUNNING.value)
FINISHED = (State.DONE.value, State.FAILED.value)


class Source(StrEnum):
    """The source of `delivered`: the consumers (SDK), the broker, or none."""

    SDK = "sdk"
    BROKER = "broker"
    NONE = "none"
