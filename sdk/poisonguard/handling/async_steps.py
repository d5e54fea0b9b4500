"""The steps of a message played on an event loop: waiting blocks nobody."""

from __future__ import annotations

import asyncio
import time

from poisonguard.handling.counts import Slot
from poisonguard.handling.hot_path import AsyncHandler
from poisonguard.handling.message_flow import GuardComponents, MessageFlow
from poisonguard.handling.steps import Call, Run, Steps, Wait
from poisonguard.outcome import Outcome
from poisonguard.processes.stopping import Leaving

# What threads wait for cannot be awaited: how soon a task notices that it is to stop.
LOOK_AGAIN = 0.1


class Tasks:
    """Handles on an event loop what is not ordinary."""

    def __init__(self, components: GuardComponents, handling: MessageFlow) -> None:
        self._components = components
        self._handling = handling

    async def handle(self, message: object, handler: AsyncHandler) -> Outcome:
        while (entry := self._handling.again()) is not None:
            again = self._handling.steps_again(entry)
            await play(again, entry.handler, entry.message, self._components.leaving)
        steps = self._handling.steps(message, handler)
        return await play(steps, handler, message, self._components.leaving)

    async def after(
        self, message: object, handler: AsyncHandler, slot: Slot, error: BaseException
    ) -> Outcome:
        steps = self._handling.steps_after(message, handler, slot, error)
        return await play(steps, handler, message, self._components.leaving)


async def play(
    steps: Steps, handler: AsyncHandler, message: object, leaving: Leaving
) -> Outcome:
    """Bring one message to its outcome in this task."""
    answer: object = None
    raised: BaseException | None = None
    try:
        step = next(steps)
        while True:
            try:
                match step:
                    case Run():
                        answer = await handler(message)
                    case Wait(seconds):
                        await _pause(seconds, leaving)
                        answer = None
                    case Call(function):
                        answer = await asyncio.to_thread(function)
            # What ends the task or the process, too, is for the handling to judge.
            except BaseException as error:  # noqa: BLE001
                raised = error
            # Not in the clause above: what a retry raises is no consequence of this.
            step = steps.send(answer) if raised is None else steps.throw(raised)
            raised = None
    except StopIteration as end:
        return Outcome(end.value)


async def _pause(seconds: float, leaving: Leaving) -> None:
    until = time.monotonic() + seconds
    while not leaving.is_set() and (remaining := until - time.monotonic()) > 0:
        await asyncio.sleep(min(remaining, LOOK_AGAIN))
