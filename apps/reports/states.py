"""What may become of a run. Constraints repeat this."""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


NEXT: dict[State, frozenset[State]] = {
    State.QUEUED: frozenset({State.RUNNING}),
    # Running again: a worker takes a run over from one that died.
    State.RUNNING: frozenset({State.RUNNING, State.DONE, State.FAILED}),
    State.DONE: frozenset(),
    State.FAILED: frozenset(),
}


def before(state: State) -> list[str]:
    """List the states from which this one can be reached."""
    return sorted(origin.value for origin, onward in NEXT.items() if state in onward)


UNFINISHED = (State.QUEUED.value, State.RUNNING.value)
FINISHED = (State.DONE.value, State.FAILED.value)


class Source(StrEnum):
    """Who told how much was delivered: the consumers, the broker, or nobody."""

    SDK = "sdk"
    BROKER = "broker"
    NONE = "none"
