"""Run the steps of a message on an event loop, without blocking it."""

from __future__ import annotations

import asyncio
import time

from poisonguard.handling.guard_components import GuardComponents
from poisonguard.handling.handled_counts_and_durations import Slot
from poisonguard.handling.healthy_path import AsyncHandler
from poisonguard.handling.slow_path import MessageFlow
from poisonguard.handling.step_types_and_thread_runner import (
    BlockingCall,
    RunHandler,
    Steps,
    Wait,
)
from poisonguard.outcome import Outcome
from poisonguard.processes.signal_safe_event import SignalSafeEvent

# Seconds between a task's checks for a stop: a threading event cannot be awaited.
POLL_SECONDS = 0.1


class Tasks:
    """The slow path for tasks on an event loop."""

    def __init__(self, components: GuardComponents, handling: MessageFlow) -> None:
        self._components = components
        self._handling = handling

    async def handle(self, message: object, handler: AsyncHandler) -> Outcome:
        """Retry due released messages, decide the new message, return its outcome.

        All of that is done in this task.
        """
        while (entry := self._handling.take_retry()) is not None:
            again = self._handling.retry_steps(entry)
            await play(again, entry.handler, entry.message, self._components.leaving)
        steps = self._handling.steps(message, handler)
        return await play(steps, handler, message, self._components.leaving)

    async def after(
        self, message: object, handler: AsyncHandler, slot: Slot, error: BaseException
    ) -> Outcome:
        """Return the outcome of a message whose handler raised on the healthy path.

        Decide it in this task.
        """
        steps = self._handling.failure_steps(message, handler, slot, error)
        return await play(steps, handler, message, self._components.leaving)


async def play(
    steps: Steps, handler: AsyncHandler, message: object, leaving: SignalSafeEvent
) -> Outcome:
    """Run the steps of one message in this task and return its outcome."""
    answer: object = None
    raised: BaseException | None = None
    try:
        step = next(steps)
        while True:
            try:
                match step:
                    case RunHandler():
                        answer = await handler(message)
                    case Wait(seconds):
                        await _pause(seconds, leaving)
                        answer = None
                    case BlockingCall(function):
                        answer = await asyncio.to_thread(function)
            # The message flow also decides what ends the task or the process.
            except BaseException as error:  # noqa: BLE001
                raised = error
            # Outside the except clause, or this error would be a retry's context.
            step = steps.send(answer) if raised is None else steps.throw(raised)
            raised = None
    except StopIteration as end:
        return Outcome(end.value)


async def _pause(seconds: float, leaving: SignalSafeEvent) -> None:
    """Wait some seconds in this task, or until this process is told to stop."""
    until = time.monotonic() + seconds
    while not leaving.is_set() and (remaining := until - time.monotonic()) > 0:
        await asyncio.sleep(min(remaining, POLL_SECONDS))
