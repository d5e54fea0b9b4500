"""Reports on disk for the time while the server is away.

The folder holds segments, `*.spool`, each written and locked by one process. A record
is its length, its CRC-32 and one JSON object, `{"failures": {...}}` for instance.
Records are only appended, and a segment is emptied or removed when the server has
accepted all of them: a process killed before that sends some again, and the server
counts them once.

The kernel releases the lock (`lockf`) with its process: the next process, or another
running one, takes over the segments of a dead one. A record that was only half written
when its writer died was never acknowledged; that tail goes to `damaged/`. What the
server rejects goes to `rejected/`, one file each, with the reason.

One folder is for one server and one API key. Put it on a volume that survives what your
consumers must survive.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import struct
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4
from zlib import crc32

from poisonguard.errors import Full, Misconfigured
from poisonguard.processes.linux_only_fcntl import fcntl

log = logging.getLogger(__name__)

SEGMENT_LIMIT = 8 * 1024 * 1024
BATCH_RECORDS = 100
BATCH_BYTES = 4 * 1024 * 1024

_HEADER = struct.Struct("<II")  # length, CRC-32
_SUFFIX = ".spool"

Item = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SpoolBatch:
    """The oldest records, all of one kind."""

    kind: str
    items: tuple[Item, ...]
    end: int
    segment: _Segment


class _OpenInodes:
    """The inodes of the segments that this process has open.

    The kernel drops a process's lock on a file when the process closes any descriptor
    of it, so no file may be opened twice.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget open spool files, the parent's, in a forked child; take a new lock."""
        self.lock = threading.Lock()
        self.inodes: set[tuple[int, int]] = set()


_open_inodes = _OpenInodes()
os.register_at_fork(after_in_child=_open_inodes.reset)


class _Segment:
    """One file of records, locked by this process while it is open."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor
        self.offset = 0  # the server has accepted what is before it
        self.size = 0  # the records before it are whole
        self.sealed = False

    @property
    def is_gone(self) -> bool:
        """Tell whether the spool segment's file was removed from its folder."""
        return os.fstat(self.descriptor).st_nlink == 0

    def append(self, data: bytes, *, durable: bool, size_limit: int) -> None:
        """Write a record at the end of a spool segment; on an OSError, none stays."""
        try:
            _write_whole(self.descriptor, _HEADER.pack(len(data), crc32(data)) + data)
            if durable:
                os.fsync(self.descriptor)
        except OSError:
            self._cut_partial_record()
            raise
        self.size += _HEADER.size + len(data)
        self.sealed = self.size >= size_limit

    def _cut_partial_record(self) -> None:
        """Cut a half-written record off the spool segment; write no more to it."""
        # After a failed fsync the pages on disk are unknown: start another file.
        self.sealed = True
        with suppress(OSError):
            os.ftruncate(self.descriptor, self.size)

    def records(self, offset: int, end: int) -> Iterator[tuple[bytes, int]]:
        """Yield each whole record of a spool segment with the offset behind it."""
        while offset + _HEADER.size <= end:
            header = os.pread(self.descriptor, _HEADER.size, offset)
            length, checksum = _HEADER.unpack(header)
            behind = offset + _HEADER.size + length
            if length == 0 or behind > end:
                return
            data = _read_whole(self.descriptor, length, offset + _HEADER.size)
            if crc32(data) != checksum:
                return
            yield data, behind
            offset = behind

    def close(self) -> None:
        """Close the spool segment's file, which releases its lock."""
        with _open_inodes.lock:
            _open_inodes.inodes.discard(_inode(os.fstat(self.descriptor)))
            os.close(self.descriptor)

    def discard(self) -> None:
        """Close an empty spool segment, and remove its file if possible."""
        with suppress(OSError):
            self.path.unlink()
        self.close()

    def clear(self) -> None:
        """Truncate the spool segment to nothing: all its records are accepted."""
        os.ftruncate(self.descriptor, 0)
        self.offset = self.size = 0


class Spool:
    """The segments of one process, and those taken over from dead ones."""

    def __init__(self, folder: Path, *, segment_limit: int = SEGMENT_LIMIT) -> None:
        self.folder = folder
        self._segment_limit = segment_limit
        try:
            for needed in (folder, self.rejected_folder, self._damaged_folder):
                needed.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as reason:
            raise Misconfigured(
                f"The spool folder {folder} cannot be made ({reason.strerror}):"
                " name one that this process may write to."
            ) from reason
        self._segments: list[_Segment] = []
        self._reset()

    def _reset(self) -> None:
        """Forget all segments and counts of the spool; close a parent's descriptors."""
        self._lock = threading.Lock()
        self._segments, inherited = [], self._segments
        self.failures = 0  # failure reports that wait here
        self.waiting = 0  # records of any kind
        for segment in inherited:
            os.close(segment.descriptor)

    def reset_after_fork(self) -> None:
        """Leave the parent's spool segments to it: a child inherits no locks."""
        self._reset()

    @property
    def rejected_folder(self) -> Path:
        """Return the folder of spooled records that the server rejected."""
        return self.folder / "rejected"

    @property
    def _damaged_folder(self) -> Path:
        """Return the folder of the spool segments with an unreadable end."""
        return self.folder / "damaged"

    @property
    def rejected(self) -> int:
        """Return how many rejected records of the spool wait for a person."""
        return _count_files(self.rejected_folder)

    @property
    def damaged(self) -> int:
        """Return how many spool segments had an unreadable end."""
        return _count_files(self._damaged_folder)

    def append(self, kind: str, item: Item, *, durable: bool) -> None:
        """Write a record to the spool, on the disk at return if `durable`.

        Raise Full, and then nothing of the record is kept.
        """
        data = json.dumps({kind: item}, separators=(",", ":")).encode()
        with self._lock:
            try:
                self._write(data, durable=durable)
            except OSError as reason:
                raise _full_error(self.folder, reason) from reason
            self._count(kind, 1)

    def adopt(self) -> int:
        """Take over the spooled reports of dead processes; return how many segments.

        Raise Full, after taking the others, where some cannot be taken over.
        """
        orphans, trouble = list[_Segment](), None
        for path in sorted(self.folder.glob(f"*{_SUFFIX}")):
            try:
                segment = _open_locked(path, os.O_RDWR)
            except OSError as reason:
                trouble = reason
            else:
                orphans += [segment] if segment else []
        with self._lock:
            for segment in orphans:
                self._take_over(segment)
            self._segments.sort(key=lambda segment: segment.path.name)
        if trouble is not None:
            raise _stuck_error(self.folder, trouble) from trouble
        return len(orphans)

    def batch(self) -> SpoolBatch | None:
        """Return the oldest spooled records; the same until `confirm_batch`.

        Return None if no record waits. Raise Full where accepted segments cannot be
        removed and no others are left.
        """
        trouble = None
        with self._lock:
            for segment in list(self._segments):
                batch = _read_batch(segment)
                if batch is not None:
                    return batch
                try:
                    self._retire(segment)
                except OSError as reason:
                    trouble = reason
        if trouble is not None:
            raise _stuck_error(self.folder, trouble) from trouble
        return None

    def confirm_batch(self, batch: SpoolBatch) -> None:
        """Note in memory that the server accepted a batch of spooled records.

        Empty or remove a segment whose records are all accepted.
        """
        with self._lock:
            batch.segment.offset = batch.end
            self._count(batch.kind, -len(batch.items))
            if batch.end >= batch.segment.size:
                with suppress(OSError):  # `batch` tries again, and says so
                    self._retire(batch.segment)

    def set_aside(self, kind: str, item: Item, detail: str) -> None:
        """Store a rejected report in a consumer's spool for a person; once if equal."""
        name = hashlib.sha256(json.dumps(item, sort_keys=True).encode()).hexdigest()[
            :32
        ]
        path = self.rejected_folder / f"{name}.json"
        text = json.dumps({"rejected": detail, kind: item}, indent=1)
        try:
            _write_file(path, text.encode())
        except OSError as reason:
            raise _full_error(self.rejected_folder, reason) from reason
        log.error("the server rejects a spooled report, kept as %s: %s", path, detail)

    def close(self) -> None:
        """Close the spool's segments; the next process sends their records."""
        with self._lock:
            for segment in list(self._segments):
                if segment.offset >= segment.size:
                    segment.sealed = True
                    with suppress(OSError):  # the next process tries it again
                        self._retire(segment)
            for segment in self._segments:
                segment.close()
            self._segments = []

    def _count(self, kind: str, number: int) -> None:
        """Add to the numbers of waiting spooled records of this kind."""
        self.waiting += number
        if kind == "failures":
            self.failures += number

    def _write(self, data: bytes, *, durable: bool) -> None:
        """Append a record to the newest segment; drop a new one that stays empty."""
        segment = self._writable()
        try:
            segment.append(data, durable=durable, size_limit=self._segment_limit)
        except OSError:
            # It stays empty, and each segment holds a descriptor.
            if segment.size == 0:
                self._segments.remove(segment)
                segment.discard()
            raise

    def _writable(self) -> _Segment:
        """Return the spool segment to append to, a new one if needed."""
        newest = self._segments[-1] if self._segments else None
        # The folder may have been removed: what is written there would be lost.
        if newest is None or newest.sealed or newest.is_gone:
            self._segments.append(_new_segment(self.folder))
        return self._segments[-1]

    def _take_over(self, segment: _Segment) -> None:
        """Take over a dead process's spool segment; count and send its records."""
        size = os.fstat(segment.descriptor).st_size
        for data, behind in segment.records(0, size):
            segment.size = behind
            self._count(_kind(data), 1)
        segment.sealed = True
        self._segments.append(segment)
        log.info("took over %s of a process that is gone", segment.path.name)

    def _retire(self, segment: _Segment) -> None:
        """Empty or remove a spool segment whose records are all sent."""
        if segment is self._segments[-1] and not segment.sealed:
            segment.clear()
            return
        if segment.is_gone:
            log.warning("%s was removed by another process", segment.path)
        elif os.fstat(segment.descriptor).st_size > segment.size:
            target = self._damaged_folder / segment.path.name
            segment.path.replace(target)
            log.warning("the end of a segment cannot be read, kept as %s", target)
        else:
            segment.path.unlink(missing_ok=True)
        self._segments.remove(segment)
        segment.close()


def _new_segment(folder: Path) -> _Segment:
    """Create and lock an empty spool segment that is durably in its folder."""
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL
    while True:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        name = f"{time.time_ns():020d}-{os.getpid()}-{uuid4().hex[:8]}{_SUFFIX}"
        # A process that takes over orphans may lock and remove it first.
        segment = _open_locked(folder / name, flags)
        if segment is not None:
            try:
                _sync_folder(folder)
            except OSError:
                segment.discard()
                raise
            return segment


def _open_locked(path: Path, flags: int) -> _Segment | None:
    """Open and lock a spool segment; return None when it is locked, or gone."""
    with _open_inodes.lock:
        with suppress(FileNotFoundError):
            if _inode(path.stat()) in _open_inodes.inodes:
                return None
        try:
            descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            return None
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            os.close(descriptor)
            return None
        stat = os.fstat(descriptor)
        if stat.st_nlink == 0:
            os.close(descriptor)
            return None
        _open_inodes.inodes.add(_inode(stat))
    return _Segment(path, descriptor)


def _read_batch(segment: _Segment) -> SpoolBatch | None:
    """Read the oldest unaccepted spooled records of one kind; None without any."""
    kind, items, end, size = "", list[Item](), segment.offset, 0
    for data, behind in segment.records(segment.offset, segment.size):
        size += len(data)
        if items and (_kind(data) != kind or size > BATCH_BYTES):
            break
        ((kind, item),) = json.loads(data).items()
        items.append(item)
        end = behind
        if len(items) == BATCH_RECORDS:
            break
    return SpoolBatch(kind, tuple(items), end, segment) if items else None


def _kind(data: bytes) -> str:
    """Return the kind of report in a spooled record, without a full parse."""
    return data[2 : data.index(b'"', 2)].decode()


def _inode(stat: os.stat_result) -> tuple[int, int]:
    """Return what identifies a file on this host."""
    return stat.st_dev, stat.st_ino


def _write_whole(descriptor: int, data: bytes) -> None:
    """Write all bytes to a file, in as many writes as it takes."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _read_whole(descriptor: int, length: int, offset: int) -> bytes:
    """Read so many bytes of a file at the offset, fewer at its end."""
    data = bytearray()
    while len(data) < length:
        piece = os.pread(descriptor, length - len(data), offset + len(data))
        if not piece:
            break
        data += piece
    return bytes(data)


def _write_file(path: Path, data: bytes) -> None:
    """Write a file durably, and whole or not at all."""
    unfinished = path.with_suffix(".new")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    with os.fdopen(os.open(unfinished, flags, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Make a folder's entries durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _count_files(folder: Path) -> int:
    """Count the finished files in a folder of the spool, 0 if it cannot be read."""
    with suppress(OSError):
        return sum(1 for path in folder.iterdir() if path.suffix != ".new")
    return 0


def _stuck_error(folder: Path, reason: OSError) -> Full:
    """Build the error for spool segments that cannot be taken over or removed."""
    return Full(
        f"{folder} holds segments that cannot be taken over or removed"
        f" ({reason.strerror or reason}): give it back its rights. Nothing of them is"
        " lost; what the server has already is sent once more, and counts once."
    )


def _full_error(folder: Path, reason: OSError) -> Full:
    """Build the error for a spool folder that cannot be written to."""
    return Full(
        f"{folder} cannot be written ({reason.strerror or reason}): make room there, or"
        " give it back its rights. Nothing of the report was kept."
    )
