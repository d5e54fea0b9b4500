"""The steps of handling a message, written once for threads and tasks.

The message flow decides, and yields a step for everything that takes time: run the
handler, wait, call a blocking function. `play` runs the steps on this thread,
`event_loop_steps` runs them on an event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

from poisonguard.outcome import Outcome
from poisonguard.processes.signal_safe_event import SignalSafeEvent


@dataclass(frozen=True, slots=True)
class RunHandler:
    """Run the handler; its exception is thrown into the steps."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait some seconds, or less when the guard is stopped."""

    seconds: float


@dataclass(frozen=True, slots=True)
class BlockingCall:
    """Call a function that may block, and send its result back."""

    function: Callable[[], Any]


Step = RunHandler | Wait | BlockingCall
Steps = Generator[Step, Any, Outcome]

RUN = RunHandler()


def play(
    steps: Steps,
    handler: Callable[[Any], object],
    message: object,
    leaving: SignalSafeEvent,
) -> Outcome:
    """Run the guard's steps of handling one message on this thread.

    Returns the message's outcome.
    """
    answer: object = None
    raised: BaseException | None = None
    try:
        step = next(steps)
        while True:
            try:
                match step:
                    case RunHandler():
                        answer = handler(message)
                    case Wait(seconds):
                        answer = leaving.wait(seconds)
                    case BlockingCall(function):
                        answer = function()
            # The message flow also decides what ends the process.
            except BaseException as error:  # noqa: BLE001
                raised = error
            # Outside the except clause, or this error would be a retry's context.
            step = steps.send(answer) if raised is None else steps.throw(raised)
            raised = None
    except StopIteration as end:
        return Outcome(end.value)
