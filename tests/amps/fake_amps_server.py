"""A loopback double of an AMPS server: enough of its protocol for the real client.

A frame is its length as u32, a compact JSON header, and the body. Every message of a
topic that is no SOW topic is kept in one log and replayed from a bookmark: `0` is the
beginning, `0|1|` is now, else a list of `publisher|sequence|`, one for each publisher.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, Self

from poisonweb.embedded.free_ports import LOOPBACK, free_port

EPOCH, NOW = "0", "0|1|"
OWN = "77"  # the publisher of what clients publish here

Header = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class LoggedMessage:
    topic: str
    publisher: str
    seq: int
    body: bytes

    @property
    def bookmark(self) -> str:
        return f"{self.publisher}|{self.seq}|"


@dataclass(frozen=True, kw_only=True)
class AmpsSubscription:
    connection: AmpsConnection
    sub_id: str
    topic: str
    bookmarks: bool


@dataclass
class Amps:
    """A server on a free port; `keys` names the key of each SOW topic."""

    keys: Mapping[str, str] = field(default_factory=dict)
    log: list[LoggedMessage] = field(default_factory=list)
    records: dict[str, dict[str, bytes]] = field(default_factory=dict)
    commands: list[Header] = field(default_factory=list)
    subscriptions: list[AmpsSubscription] = field(default_factory=list)
    connections: list[AmpsConnection] = field(default_factory=list)
    silent: frozenset[str] = frozenset()  # commands that get no answer
    is_frozen: bool = False  # it takes connections, and nothing else happens
    lock: Lock = field(default_factory=Lock)

    def __enter__(self) -> Self:
        # Reserved also when it has stopped: clients go on to try it.
        self.listener = socket.create_server((LOOPBACK, free_port()))
        Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop the fake AMPS server; a second call does nothing."""
        with suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.cut()

    @property
    def url(self) -> str:
        return f"tcp://{LOOPBACK}:{self.listener.getsockname()[1]}/amps/json"

    def cut(self) -> None:
        """Cut every connection of the fake AMPS server, as its death would."""
        with self.lock:
            connections = list(self.connections)
        for connection in connections:
            connection.close()

    def refuse(self) -> None:
        """Cut every connection of AMPS clients, and refuse logons."""
        self.silent = frozenset({"logon"})
        self.cut()

    def admit(self) -> None:
        """Accept logons of AMPS clients again, which wait for them."""
        self.silent = frozenset()
        self.cut()

    def publish(
        self, topic: str, *bodies: bytes, publisher: str = OWN, step: int = 1
    ) -> None:
        """Store messages with rising numbers, and deliver them to AMPS subscribers."""
        with self.lock:
            last = max((m.seq for m in self.log if m.publisher == publisher), default=0)
            for number, body in enumerate(bodies, start=1):
                seq = last + number * step
                self._take(
                    LoggedMessage(topic=topic, publisher=publisher, seq=seq, body=body)
                )

    def persist(self, sub_id: str, bookmark: str) -> None:
        """Tell a subscription how far its messages have been replicated."""
        header = {"c": "ack", "a": "persisted", "sub_id": sub_id, "bm": bookmark}
        with self.lock:
            for subscription in self.subscriptions:
                if subscription.sub_id == sub_id:
                    subscription.connection.send([frame(header)])

    def bookmarks_asked(self) -> list[str]:
        """Return the bookmarks at which subscriptions asked to begin, in order."""
        with self.lock:
            return [c["bookmark"] for c in self.commands if c["c"] == "subscribe"]

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                peer, _ = self.listener.accept()
                connection = AmpsConnection(server=self, peer=peer)
                with self.lock:
                    self.connections.append(connection)
                connection.start()

    def _take(self, message: LoggedMessage) -> None:
        if message.topic in self.keys:
            key = str(json.loads(message.body)[self.keys[message.topic]])
            self.records.setdefault(message.topic, {})[key] = message.body
        else:
            self.log.append(message)
        for subscription in self.subscriptions:
            if subscription.topic == message.topic:
                subscription.connection.send([delivery(message, subscription)])

    def obey(self, connection: AmpsConnection, header: Header, body: bytes) -> None:
        with self.lock:
            self.commands.append(header)
            if header["c"] not in self.silent and not self.is_frozen:
                _OBEY[header["c"]](self, connection, header, body)

    def logon(self, connection: AmpsConnection, header: Header, _: bytes) -> None:
        connection.acknowledge(header, version="5.3.4.0", s=0, bm="1|0|")

    def take(self, _: AmpsConnection, header: Header, body: bytes) -> None:
        self.publish_own(header["t"], body)

    def publish_own(self, topic: str, body: bytes) -> None:
        last = max((m.seq for m in self.log if m.publisher == OWN), default=0)
        self._take(LoggedMessage(topic=topic, publisher=OWN, seq=last + 1, body=body))

    def heartbeat(self, connection: AmpsConnection, header: Header, _: bytes) -> None:
        if header["o"].startswith("start"):
            Thread(target=self._beat, args=[connection], daemon=True).start()

    def _beat(self, connection: AmpsConnection) -> None:
        while connection in self.connections and not self.is_frozen:
            connection.send([frame({"c": "heartbeat"})])
            time.sleep(0.1)

    def flush(self, connection: AmpsConnection, header: Header, _: bytes) -> None:
        connection.acknowledge(header)

    def subscribe(self, connection: AmpsConnection, header: Header, _: bytes) -> None:
        subscription = AmpsSubscription(
            connection=connection,
            sub_id=header["sub_id"],
            topic=header["t"],
            bookmarks="bookmark" in header,
        )
        # First, since the client goes on as soon as it has the answer.
        self.subscriptions.append(subscription)
        connection.acknowledge(header, sub_id=subscription.sub_id)
        if "bookmark" in header:
            messages = self._after(subscription.topic, header["bookmark"])
            connection.send(delivery(message, subscription) for message in messages)

    def _after(self, topic: str, bookmark: str) -> Iterator[LoggedMessage]:
        if bookmark == NOW:
            return iter(())
        marks = dict(_marks(bookmark))
        return (
            message
            for message in self.log
            if message.topic == topic and message.seq > marks.get(message.publisher, 0)
        )

    def sow(self, connection: AmpsConnection, header: Header, _: bytes) -> None:
        query, topic = header["query_id"], header["t"]
        connection.acknowledge(header, query_id=query)
        frames = [frame({"c": "group_begin", "query_id": query})]
        for key, body in self.records.get(topic, {}).items():
            first = {"c": "sow", "t": topic, "query_id": query}
            record = compact({"k": key, "l": len(body)})
            frames.append(frame(first, record + body))
        frames.append(frame({"c": "group_end", "query_id": query}))
        connection.send(frames)

    def sow_and_subscribe(
        self, connection: AmpsConnection, header: Header, body: bytes
    ) -> None:
        self.sow(connection, header, body)
        self.subscriptions.append(
            AmpsSubscription(
                connection=connection,
                sub_id=header["sub_id"],
                topic=header["t"],
                bookmarks=False,
            )
        )

    def unsubscribe(self, connection: AmpsConnection, header: Header, _: bytes) -> None:
        self.subscriptions = [
            s
            for s in self.subscriptions
            # Another client may have one of the same name, and this one come late.
            if (s.connection, s.sub_id) != (connection, header["sub_id"])
        ]
        connection.acknowledge(header)


_OBEY = {
    "logon": Amps.logon,
    "publish": Amps.take,
    "p": Amps.take,
    "flush": Amps.flush,
    "heartbeat": Amps.heartbeat,
    "subscribe": Amps.subscribe,
    "sow": Amps.sow,
    "sow_and_subscribe": Amps.sow_and_subscribe,
    "unsubscribe": Amps.unsubscribe,
}


class AmpsConnection:
    """One client: a thread for its commands, and one for sending."""

    def __init__(self, *, server: Amps, peer: socket.socket) -> None:
        self.server, self.peer = server, peer
        self.out: SimpleQueue[list[bytes] | None] = SimpleQueue()

    def start(self) -> None:
        Thread(target=self._read, daemon=True).start()
        Thread(target=self._write, daemon=True).start()

    def send(self, frames: Iterable[bytes]) -> None:
        self.out.put(list(frames))

    def acknowledge(self, header: Header, **more: object) -> None:
        if "cid" in header:
            answer = {"c": "ack", "a": "processed", "cid": header["cid"]}
            self.send([frame({**answer, "status": "success", **more})])

    def close(self) -> None:
        with suppress(OSError):
            self.peer.shutdown(socket.SHUT_RDWR)
        self.out.put(None)

    def _read(self) -> None:
        with suppress(OSError, struct.error), self.peer.makefile("rb") as stream:
            while True:
                (length,) = struct.unpack(">I", stream.read(4))
                text = stream.read(length)
                if len(text) < length:  # cut off in the middle of it
                    break
                self._obey(text)
        self._forget()

    def _obey(self, text: bytes) -> None:
        header, end = json.JSONDecoder().raw_decode(text.decode("latin-1"))
        self.server.obey(self, header, text[end:])

    def _write(self) -> None:
        with suppress(OSError):
            while (frames := self.out.get()) is not None:
                self.peer.sendall(b"".join(frames))

    def _forget(self) -> None:
        with self.server.lock:
            self.server.connections.remove(self)
            self.server.subscriptions = [
                s for s in self.server.subscriptions if s.connection is not self
            ]
        self.close()
        self.peer.close()


def frame(header: Header, body: bytes = b"") -> bytes:
    content = compact(header) + body
    return struct.pack(">I", len(content)) + content


def compact(value: Mapping[str, object]) -> bytes:
    # The client takes a space after a colon for a broken stream.
    return json.dumps(value, separators=(",", ":")).encode()


def delivery(message: LoggedMessage, subscription: AmpsSubscription) -> bytes:
    header = {"c": "p", "t": message.topic, "sids": subscription.sub_id}
    if subscription.bookmarks:
        header["bm"] = message.bookmark
    return frame(header, message.body)


def _marks(bookmark: str) -> Iterator[tuple[str, int]]:
    if bookmark != EPOCH:
        for one in bookmark.split(","):
            publisher, seq, _ = one.split("|")
            yield publisher, int(seq)
