"""The handling of a message as a row of steps, so that it is written once.

Handling decides, and yields what takes time: run the handler, wait, call something
that may block. Who plays the steps says how: `play` on this thread, `async_steps` on an
event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

from poisonguard.outcome import Outcome
from poisonguard.processes.stopping import Leaving


@dataclass(frozen=True, slots=True)
class Run:
    """Run the handler; what it raises comes back into the handling."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Let some seconds pass, or fewer when the guard is stopped meanwhile."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Call:
    """Call something that may block, and answer what it returns."""

    function: Callable[[], Any]


Step = Run | Wait | Call
Steps = Generator[Step, Any, Outcome]

RUN = Run()


def play(
    steps: Steps,
    handler: Callable[[Any], object],
    message: object,
    leaving: Leaving,
) -> Outcome:
    """Bring one message to its outcome on this thread."""
    answer: object = None
    raised: BaseException | None = None
    try:
        step = next(steps)
        while True:
            try:
                match step:
                    case Run():
                        answer = handler(message)
                    case Wait(seconds):
                        answer = leaving.wait(seconds)
                    case Call(function):
                        answer = function()
            # What ends the process, too, is for the handling to judge.
            except BaseException as error:  # noqa: BLE001
                raised = error
            # Not in the clause above: what a retry raises is no consequence of this.
            step = steps.send(answer) if raised is None else steps.throw(raised)
            raised = None
    except StopIteration as end:
        return Outcome(end.value)
