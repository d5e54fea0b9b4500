"""Positions as Poisonweb keeps them: settled runs, and one holder each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from poisonguard.contract import Invalid

LAST = 2**63 - 2
MOST_RUNS = 4_096
PRESSED = MOST_RUNS * 3 // 4

Run = list[int]


@dataclass
class Position:
    """One position: the runs that are settled of each publisher, in order."""

    epoch: int = 0
    settled: dict[str, list[Run]] = field(default_factory=dict)
    persisted: dict[str, int] = field(default_factory=dict)

    def settle(self, update: dict[str, Any]) -> dict[str, Any]:
        """Add settled runs of message numbers to the fake server's position.

        Return status and pressure. Raise Invalid beyond the limit of runs, and change
        nothing.
        """
        publisher = update["publisher"]
        new_runs = [_run(run, n) for n, run in enumerate(update["settled"])]
        runs = merge_runs([*self.settled.get(publisher, []), *new_runs])
        beyond = len(runs) - (1 if runs and runs[0][0] == 0 else 0)
        if beyond > MOST_RUNS:
            raise Invalid("/settled", "there are too many runs: settle what is between")
        self.settled[publisher] = runs
        if update.get("persisted") is not None:
            last = self.persisted.get(publisher, 0)
            self.persisted[publisher] = max(last, update["persisted"])
        pressure = {"pressure": beyond / MOST_RUNS} if beyond >= PRESSED else {}
        return {"status": "ok", **pressure}

    def mark(self, publisher: str) -> dict[str, Any]:
        """Return the fake server's mark of a publisher, as /positions/open does."""
        runs, persisted = self.settled[publisher], self.persisted.get(publisher)
        is_begun = bool(runs) and runs[0][0] == 0
        processed = runs[0][1] if is_begun else -1
        return {
            "publisher": publisher,
            "processed": processed,
            "persisted": persisted,
            "settled": runs[1:] if is_begun else runs,
            "resume": processed if persisted is None else min(processed, persisted),
        }


class FakePositions(dict[tuple[str, str, str], Position]):
    """All positions, by client name, sub id and topic.

    `fence` tells those who held one that it was opened again.
    """

    def __init__(self, *, fence: Callable[..., None]) -> None:
        super().__init__()
        self._fence = fence

    def open(self, body: dict[str, Any]) -> dict[str, Any]:
        sub_id, topic = body.get("sub_id"), body.get("topic")
        if sub_id is not None and topic is not None:
            self.setdefault((body["client_name"], sub_id, topic), Position())
        opened = {
            key: position
            for key, position in self.items()
            if key[0] == body["client_name"] and sub_id in (None, key[1])
        }
        epoch = 1 + max((p.epoch for p in opened.values()), default=0)
        rows: list[dict[str, Any]] = []
        for (client_name, sub, of), position in opened.items():
            position.epoch = epoch
            self._fence(client_name=client_name, sub_id=sub, topic=of, epoch=epoch)
            rows += [
                {"sub_id": sub, "topic": of, **position.mark(publisher)}
                for publisher in position.settled
            ]
        return {"epoch": epoch, "positions": rows}

    def settle(self, update: dict[str, Any]) -> dict[str, Any]:
        key = (update["client_name"], update["sub_id"], update["topic"])
        position = self.get(key)
        if position is None:
            raise Invalid("/topic", "this position is not open: open it first.")
        if position.epoch != update["epoch"]:
            return {"status": "fenced"}
        return position.settle(update)


def merge_runs(runs: list[Run]) -> list[Run]:
    """Join inclusive runs of numbers that overlap or touch."""
    joined: list[Run] = []
    for low, high in sorted(runs):
        if joined and low <= joined[-1][1] + 1:
            joined[-1][1] = max(joined[-1][1], high)
        else:
            joined.append([low, high])
    return joined


def _run(value: object, place: int) -> Run:
    """Return a settled run sent to the fake server as a list.

    Raise Invalid with its place for anything else.
    """
    match value:
        case [int(low), int(high)] if 0 <= low <= high <= LAST:
            if not isinstance(low, bool) and not isinstance(high, bool):
                return [low, high]
    raise Invalid(f"/settled/{place}", "a run is [first, last], from 0 to 2^63-2.")
