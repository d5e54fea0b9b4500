"""The logs of killed consumers, one for each of their lives.

A log holds u64s: each number just before it is settled, and 0 whenever all before it
have been flushed. What is written to a file survives the process.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path

FLUSHED = 0


class Log:
    """The log of the process that writes it."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY)

    def write(self, number: int) -> None:
        os.write(self._file, struct.pack("Q", number))


class Lives:
    """The logs in a folder, read by the killing test."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def begin(self) -> Path:
        """Return the log's path for the consumer's next life."""
        return self._folder / f"{len([*self._paths()])}.life"

    def count(self) -> int:
        return sum(path.stat().st_size // 8 for path in self._paths())

    def settled(self) -> set[int]:
        return {number for log in self._logs() for number in log}

    def flushed(self) -> set[int]:
        """Return what a consumer had settled before the last flush of its life."""
        return {
            number
            for log in self._logs()
            if FLUSHED in log
            for number in log[: -log[::-1].index(FLUSHED) - 1]
        }

    def _paths(self) -> Iterator[Path]:
        return self._folder.glob("*.life")

    def _logs(self) -> Iterator[tuple[int, ...]]:
        for path in self._paths():
            data = path.read_bytes()
            yield struct.unpack(f"{len(data) // 8}Q", data)
