"""The binary format of a journal file; its owner writes it, others read it.

A header identifies the owner. Then come, for each slot, the number of the message in
flight (0: none), a beat that grows when work on it starts again, and the number of the
message that hangs there. The supervisor or watchdog adds how the owner ended.

Only the owner maps the file. All others use pread and pwrite, because a truncated file
is a short read to them; mapped, it would be a SIGBUS.
"""

from __future__ import annotations

import os
import struct
from array import array
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import IntEnum
from hashlib import sha256
from typing import Self
from uuid import UUID

from poisonguard.processes.kernel_process_facts import Identity

MAGIC = b"pguard\r\n"
VERSION = 1
SUFFIX = ".journal"
WORD = 8
# magic, version, slots, pid, started, incarnation, boot, name, OOM kills at the start
_OWNER = struct.Struct("=8sIIQQ16s16s32sQ")
# state, ending kind, ending value, ended at
_STATE = struct.Struct("=QIIQ")
_ENDING = struct.Struct("=IIQ")
_U64 = struct.Struct("=Q")

STATE_AT = _OWNER.size
ENDING_AT = STATE_AT + WORD
HEADER = STATE_AT + _STATE.size
SLOT_LIMIT = 65_536


class OwnerState(IntEnum):
    """Whether the owner runs or was told to stop."""

    RUN = 1
    STOPPING = 2


class EndingKind(IntEnum):
    """How the owner ended, as far as it was observed."""

    UNSEEN = 0
    EXIT = 1  # with this exit code
    SIGNAL = 2  # by this signal
    MEMORY = 3  # by the kernel, for lack of memory
    HANG = 4  # killed by its watchdog: a handler was stuck for these milliseconds


class UnreadableJournal(Exception):
    """The file is not a journal that we can read."""


class Newer(UnreadableJournal):
    """A newer version of poisonguard wrote the file."""


class Truncated(UnreadableJournal):
    """The file is shorter than its header says."""


class Unstarted(UnreadableJournal):
    """The owner ended before it wrote the first byte."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ending:
    kind: EndingKind
    value: int
    at: datetime | None

    @classmethod
    def parse(cls, kind: int, value: int, at: int) -> Self:
        """Parse from a journal how its process ended: by a signal, by a hang, say.

        Raise UnreadableJournal if that is bad.
        """
        try:
            return cls(kind=EndingKind(kind), value=value, at=_moment(at))
        except (ValueError, OverflowError, OSError) as damage:
            raise UnreadableJournal from damage


@dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    """The owner of a journal; the file size follows from the slots."""

    slots: int
    owner: Identity
    incarnation: UUID
    name: bytes
    oom_kills: int

    @property
    def size(self) -> int:
        """Return the size of the whole journal file in bytes."""
        return HEADER + 3 * WORD * self.slots

    def packed(self) -> bytes:
        """Encode a journal's header as bytes, with its owner marked as running."""
        owner = _OWNER.pack(
            MAGIC,
            VERSION,
            self.slots,
            self.owner.pid,
            self.owner.started,
            self.incarnation.bytes,
            self.owner.boot.bytes,
            self.name,
            self.oom_kills,
        )
        return owner + _STATE.pack(OwnerState.RUN, EndingKind.UNSEEN, 0, 0)

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """Read the header of a journal; raise an UnreadableJournal for other bytes."""
        if not data.strip(b"\0"):
            raise Unstarted
        if len(data) < HEADER and MAGIC.startswith(data[: len(MAGIC)]):
            raise Truncated
        if not data.startswith(MAGIC):
            raise UnreadableJournal
        _, version, slots, pid, started, incarnation, boot, name, oom_kills = (
            _OWNER.unpack_from(data)
        )
        if version != VERSION:
            raise Newer
        return cls(
            slots=slots,
            owner=Identity(pid=pid, started=started, boot=UUID(bytes=boot)),
            incarnation=UUID(bytes=incarnation),
            name=name,
            oom_kills=oom_kills,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class JournalSnapshot:
    """The content of a journal at one moment."""

    header: Header
    state: int
    ending: Ending
    words: tuple[int, ...]
    beats: tuple[int, ...]
    hung: tuple[int, ...]

    @property
    def in_flight(self) -> tuple[int, ...]:
        """Return the numbers of the messages in flight in a journal, each once."""
        return tuple(dict.fromkeys(word for word in self.words if word))

    @property
    def hanging(self) -> tuple[int, ...]:
        """Return the numbers of messages in flight that are marked as hanging."""
        pairs = zip(self.words, self.hung, strict=True)
        return tuple(
            dict.fromkeys(word for word, hung in pairs if word and word == hung)
        )


def name_digest(name: str) -> bytes:
    """Return the digest of a consumer's name, as a journal's header holds it."""
    return sha256(name.encode("utf-8", "surrogatepass")).digest()


def file_name(name: bytes, incarnation: UUID) -> str:
    """Return the file name of the journal of one process of a consumer."""
    return f"{stem(name)}-{incarnation.hex}{SUFFIX}"


def stem(name: bytes) -> str:
    """Return the common prefix of the journals' file names of one consumer."""
    return name.hex()[:24]


def read(fd: int) -> JournalSnapshot:
    """Read a journal; raise UnreadableJournal when the file is not a journal."""
    data = os.pread(fd, HEADER, 0)
    header = Header.parse(data)
    if not 0 < header.slots <= SLOT_LIMIT or os.fstat(fd).st_size < header.size:
        raise Truncated
    columns = array("Q", os.pread(fd, 3 * WORD * header.slots, HEADER))
    state, *ending = _STATE.unpack_from(data, STATE_AT)
    return JournalSnapshot(
        header=header,
        state=state,
        ending=Ending.parse(*ending),
        words=tuple(columns[: header.slots]),
        beats=tuple(columns[header.slots : 2 * header.slots]),
        hung=tuple(columns[2 * header.slots :]),
    )


def write_stopping(fd: int) -> None:
    """For the supervisor, mark the owner of a journal as told to stop."""
    os.pwrite(fd, _U64.pack(OwnerState.STOPPING), STATE_AT)


def write_ending(fd: int, kind: EndingKind, value: int, at: datetime) -> None:
    """Record how the owner of a journal ended, and when."""
    packed = _ENDING.pack(kind, value, int(at.timestamp() * 1_000_000))
    os.pwrite(fd, packed, ENDING_AT)


def write_hung(fd: int, header: Header, slot: int, number: int) -> None:
    """Record in a slot of the journal that the message of this number hangs."""
    at = HEADER + WORD * (2 * header.slots + slot)
    os.pwrite(fd, _U64.pack(number), at)


def _moment(microseconds: int) -> datetime | None:
    """Convert microseconds since 1970 to a time; None for 0."""
    if not microseconds:
        return None
    return datetime.fromtimestamp(microseconds / 1_000_000, UTC)
