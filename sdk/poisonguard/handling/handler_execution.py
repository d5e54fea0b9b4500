"""Run handlers in the slots of this process."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Generator
from typing import Any

from poisonguard.handling.earlier_attempt_records import MessageRecords
from poisonguard.handling.guard_components import GuardComponents
from poisonguard.handling.handled_counts_and_durations import Slot
from poisonguard.handling.lazy_message_facts import MessageFacts
from poisonguard.handling.step_types_and_thread_runner import RUN, Step
from poisonguard.handling.waiting_with_undecided_message import (
    POLL_SECONDS,
    Released,
    Waits,
)
from poisonguard.journal.failed_attempts_record import Record

log = logging.getLogger(__name__)


class HandlerRuns:
    """Run each handler in a slot, with its message in the journal meanwhile."""

    def __init__(
        self, components: GuardComponents, *, records: MessageRecords, waits: Waits
    ) -> None:
        self._slots = components.slots
        self._journal = components.journal
        self._durations = components.counts.seconds
        self._hold_for = components.settings.hold_for
        self._leaving = components.leaving
        self._end_process = components.end_process
        self._records = records
        self._waits = waits

    def attempt(
        self, facts: MessageFacts, record: Record | None
    ) -> Generator[Step, Any, Exception | None]:
        """Run the handler once; return its exception if the message failed."""
        alone = facts if record is not None and record.must_run_alone else None
        try:
            slot = yield from self._take_slot(facts, alone)
            return (yield from self._run(facts, slot))
        finally:
            self._slots.end_turn_alone(alone)

    def end_failed(
        self, facts: MessageFacts, slot: Slot, error: BaseException
    ) -> Exception:
        """Free the slot of a failed run of the healthy path; return the failure."""
        try:
            return self._failure(facts, error)
        finally:
            self._journal.words[slot.place] = 0
            self._slots.give_back(slot)

    def _take_slot(
        self, facts: MessageFacts, alone: MessageFacts | None
    ) -> Generator[Step, Any, Slot]:
        """Wait for a slot to run a message; raise Released after `hold_for`."""
        until = time.monotonic() + self._hold_for
        while (slot := self._slots.take(alone=alone)) is None:
            if time.monotonic() >= until:
                raise Released("others have been running all the time")
            yield from self._waits.pause(facts, POLL_SECONDS)
        return slot

    def _run(
        self, facts: MessageFacts, slot: Slot
    ) -> Generator[Step, Any, Exception | None]:
        """Run a message's handler in a slot, free it; return its exception or None."""
        self._journal.beat(slot.place)
        started = time.perf_counter()
        self._journal.words[slot.place] = facts.number
        try:
            yield RUN
        except BaseException as error:  # noqa: BLE001 - `_failure` reraises others
            return self._failure(facts, error)
        finally:
            self._journal.words[slot.place] = 0
            self._slots.give_back(slot)
        slot.handled += 1
        self._durations.append(time.perf_counter() - started)
        return None

    def _failure(self, facts: MessageFacts, error: BaseException) -> Exception:
        """Return a handler's error; reraise one that ends the process or task."""
        if isinstance(error, Exception):
            return error
        if isinstance(error, SystemExit) and not self._leaving.is_set():
            self._charge_and_end_process(facts, error)
        raise error

    def _charge_and_end_process(self, facts: MessageFacts, error: SystemExit) -> None:
        """Count a handler's `sys.exit` as its message's crash; end the process.

        The caller ends it on the main thread, by raising the SystemExit again.
        """
        reason = f"The handler called sys.exit({error.code!r})"
        log.error("%s ends this process: %s", facts.name, reason)
        self._records.charge_crash(facts, reason)
        if threading.current_thread() is not threading.main_thread():
            # On other threads, SystemExit ends only the thread. The crash is counted
            # already: the next start must not count it again.
            self._journal.stopping()
            self._end_process(error.code)
