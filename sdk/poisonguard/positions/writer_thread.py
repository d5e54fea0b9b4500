"""The thread that writes the positions of a bookmark store."""

from __future__ import annotations

from threading import Event, Thread

from poisonguard.policy import double_pause
from poisonguard.positions.trouble_log import TroubleLog
from poisonguard.positions.writer import PositionWriter

RETRY_LIMIT = 5.0  # seconds between tries while the server is away, at the most


class WriterThread:
    """Write once per interval, less often while that fails; it starts at once."""

    def __init__(
        self,
        writer: PositionWriter,
        *,
        name: str,
        interval: float,
        trouble_log: TroubleLog,
    ) -> None:
        self._writer = writer
        self._interval = interval
        self._trouble_log = trouble_log
        self._ended = False
        self.reset_after_fork()
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def reset_after_fork(self) -> None:
        """Take a new event for the position writer; its thread is the parent's."""
        self._woken = Event()

    @property
    def is_alive(self) -> bool:
        """Tell whether the thread that writes positions runs."""
        return self._thread.is_alive()

    def wake(self) -> None:
        """Have the writer's thread write positions now."""
        self._woken.set()

    def end(self) -> None:
        """End the thread that writes positions, without another write."""
        self._ended = True
        self._woken.set()
        self._thread.join()

    def _run(self) -> None:
        """Write positions once per interval until `end`; log what fails."""
        failures = 0
        while True:
            pause = double_pause(self._interval, failures, cap=RETRY_LIMIT)
            self._woken.wait(pause)
            self._woken.clear()
            if self._ended:
                return
            try:
                unopened = self._writer.write()
                failures = 0
                if unopened is not None:
                    self._trouble_log.log(f"A subscription is opened later: {unopened}")
            except Exception as error:  # noqa: BLE001 - the thread must go on
                failures = min(failures + 1, 8)
                self._trouble_log.log(
                    f"Positions are not written, and tried again: {error}"
                )
