"""States of a run, and their transitions. Constraints repeat them."""

from __future__ import annotations

from enum import StrEnum


class RunState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


NEXT: dict[RunState, frozenset[RunState]] = {
    RunState.QUEUED: frozenset({RunState.RUNNING}),
    # Running again: a worker takes over the run of a worker that died.
    RunState.RUNNING: frozenset({RunState.RUNNING, RunState.DONE, RunState.FAILED}),
    RunState.DONE: frozenset(),
    RunState.FAILED: frozenset(),
}


def before(state: RunState) -> list[str]:
    """List the states of a report run that can change to this one."""
    return sorted(origin.value for origin, onward in NEXT.items() if state in onward)


UNFINISHED = (RunState.QUEUED.value, RunState.RUNNING.value)
FINISHED = (RunState.DONE.value, RunState.FAILED.value)


class DeliveredSource(StrEnum):
    """The source of `delivered`: the consumers (SDK), the broker, or none."""

    SDK = "sdk"
    BROKER = "broker"
    NONE = "none"
