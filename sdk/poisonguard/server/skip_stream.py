"""Follow the skip lists of a process: a snapshot first, then every change.

Each topic has a place, `(epoch, revision)`, up to which its lists are complete. The
stream resumes at these places; after a `reset` new snapshots are loaded.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any

from poisonguard.contract import Invalid, Skip, parse_skip
from poisonguard.errors import Away, GuardError, Refused
from poisonguard.server.backoff import Backoff
from poisonguard.server.http_client import Client, Query
from poisonguard.server.response_reading import StreamedAnswer
from poisonguard.server.server_sent_events import Event
from poisonguard.skipping import skip_list_line_format
from poisonguard.skipping.skip_list import Doubt, Fence, SkipList
from poisonguard.skipping.skip_list_line_format import SkipListVersion
from poisonguard.skipping.skip_table import SkipTable

log = logging.getLogger(__name__)

# Refused requests are refused again until a person changes the cause.
REFUSED_PAUSE = 5.0
_SHOWN = 200  # characters of an event that cannot be parsed
_ANOTHER_FORM = "The snapshot of skips has another form than ours."
# What parsing the data of an event may raise.
_UNREADABLE = (
    *(ValueError, KeyError, TypeError, AttributeError),
    *(RecursionError, OverflowError),
)


class SkipStream:
    """Keep all skip lists of a process current over one connection.

    `trouble` says why they are not current, and what to do; None when they are.
    `refused` is set when the server refuses us. `on_return` is called whenever a stream
    opens, which means that the server is back.
    """

    def __init__(self, client: Client, *, on_return: Callable[[], None]) -> None:
        self._client = client
        self._on_return = on_return
        self._lists: list[SkipList] = []
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Start the skip stream again in a child, without the parent's thread."""
        self._places: dict[str, tuple[str, int]] = {}
        self._changed = threading.Condition()
        self._generation = 0  # grows when another stream is needed
        self._stopped = False
        self._thread: threading.Thread | None = None
        self.trouble: str | None = None
        self.refused: Refused | None = None
        for skip_list in self._lists:
            skip_list.reset_after_fork()

    @property
    def lists(self) -> tuple[SkipList, ...]:
        """Return the skip lists of this process's guards, which the stream follows."""
        return tuple(self._lists)

    def join(self, skip_list: SkipList) -> None:
        """Follow another skip list; the running stream restarts with its topic."""
        with self._changed:
            self._lists.append(skip_list)
        self._restart_stream()

    def leave(self, skip_list: SkipList) -> None:
        """Stop following a skip list; the running stream restarts without it."""
        with self._changed:
            self._lists.remove(skip_list)
        self._restart_stream()

    def start(self) -> None:
        """Start the thread of the skip stream, unless it runs or was stopped."""
        with self._changed:
            if self._thread is None and not self._stopped:
                self._thread = threading.Thread(
                    target=self._run, name="poisonguard-skips", daemon=True
                )
                self._thread.start()

    def until_loaded(self, timeout: float) -> bool:
        """Wait until every skip list is loaded, or Poisonweb refuses us.

        Return False if neither happens within `timeout` seconds.
        """
        with self._changed:
            return self._changed.wait_for(
                lambda: self.refused is not None or self._are_all_loaded(), timeout
            )

    def _are_all_loaded(self) -> bool:
        """Tell whether all skip lists have been loaded once."""
        return all(skip_list.age is not None for skip_list in self._lists)

    def stop(self) -> None:
        """Have the skip stream's thread end, without a wait; see `join_thread`."""
        with self._changed:
            self._stopped = True
            self._generation += 1
            self._changed.notify_all()
        self._client.end_streams()

    def join_thread(self, timeout: float) -> None:
        """Wait `timeout` seconds at most for the end of the skip stream's thread."""
        if self._thread is not None:
            self._thread.join(timeout)

    def _restart_stream(self) -> None:
        """End the open skip stream: the thread opens one for the present lists."""
        with self._changed:
            self._generation += 1
            self._changed.notify_all()
        self._client.end_streams()

    def _run(self) -> None:
        """Follow the skip stream again and again, with pauses, until `stop`."""
        backoff = Backoff()
        while not self._stopped:
            turn = self._generation
            pause = self._try(backoff, turn)
            with self._changed:
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._generation != turn, pause)  # noqa: B023

    def _try(self, backoff: Backoff, turn: int) -> float:
        """Follow the skip stream until it breaks; return the pause before a try."""
        try:
            if self._lists:
                self._follow(backoff, turn)
            return backoff.next()
        except Refused as refused:
            self._note_trouble(refused)
            self.refused = refused
            return REFUSED_PAUSE
        except GuardError as away:
            self._note_trouble(away)
        except Exception as broken:
            log.exception("the skip lists could not be followed")
            self.trouble = f"{type(broken).__name__}: {broken}"
        return backoff.next()

    def _note_trouble(self, error: GuardError) -> None:
        """Store why the skip lists are not current; log the first reason."""
        if self.trouble is None:
            log.warning("the skip lists keep their last state: %s", error)
        self.trouble = str(error)

    def _follow(self, backoff: Backoff, turn: int) -> None:
        """Load missing snapshots of skip lists, then apply events of the stream."""
        topics = sorted({skip_list.topic for skip_list in self._lists})
        for topic in topics:
            if topic not in self._places or self._is_new(topic):
                self._load_snapshot(topic)
        place = self._resume_id(topics)
        if place is None:
            return
        query = [*(("topic", topic) for topic in topics), *self._group_query()]
        with self._client.stream("/skips/stream", query, place) as events:
            self._mark_current()
            self._on_return()
            for event in events:
                if self._generation != turn or not self._handle_event(event, topics):
                    return
                backoff.reset()

    def _mark_current(self) -> None:
        """Forget the trouble of the skip stream, which is open."""
        if self.trouble is not None:
            log.info("the skip lists are followed again")
        self.trouble = self.refused = None

    def _is_new(self, topic: str) -> bool:
        """Tell whether a guard's skip list of the topic was never loaded."""
        return any(one.age is None for one in self._lists_of(topic))

    def _lists_of(self, topic: str) -> list[SkipList]:
        """Return the skip lists of this process's guards for a topic."""
        return [one for one in list(self._lists) if one.topic == topic]

    def _group_query(self) -> Query:
        """Return the query to Poisonweb for the one group of these skip lists.

        It is for all groups where they are of several.
        """
        groups = {skip_list.consumer_group for skip_list in self._lists}
        return [("consumer_group", groups.pop())] if len(groups) == 1 else []

    def _load_snapshot(self, topic: str) -> None:
        """Load a topic's skips into its skip lists; note their epoch and revision."""
        asked_at = time.monotonic()
        query = [("topic", topic), *self._group_query()]
        with self._client.open(
            "/skips", query, accept=skip_list_line_format.ACCEPT
        ) as answer:
            lists, now = self._lists_of(topic), self._client.now()
            tables = [skip_list.table(now=now) for skip_list in lists]
            if answer.media_type == skip_list_line_format.MEDIA_TYPE:
                head, suspects = _read_lines(answer, topic, tables)
            else:
                head, suspects = _read_json(answer.json(), tables)
        for skip_list, table in zip(lists, tables, strict=True):
            skip_list.load(table, suspects=suspects, now=now, asked_at=asked_at)
        self._places[topic] = head.epoch, head.revision
        number = max(map(len, tables), default=0)
        log.info("the skips of %s are loaded: %d of them", topic, number)
        with self._changed:
            self._changed.notify_all()

    def _resume_id(self, topics: list[str]) -> str | None:
        """Return the event id from which the skip stream resumes.

        None if topics are at two epochs: then all places are forgotten.
        """
        epochs = {self._places[topic][0] for topic in topics}
        if len(epochs) > 1:
            self._places.clear()
            return None
        revisions = ",".join(str(self._places[topic][1]) for topic in topics)
        return f"{epochs.pop()}.{revisions}"

    def _handle_event(self, event: Event, topics: list[str]) -> bool:
        """Apply one event of the skip stream; return whether the stream goes on."""
        try:
            ends = event.kind == "reset"
            if not ends:
                self._apply(event, topics)
        except _UNREADABLE as wrong:
            # Resuming the stream would only deliver it again.
            kind, data = event.kind[:_SHOWN], event.data[:_SHOWN]
            log.warning("an event is not understood: %s %s %r", kind, data, wrong)
            ends = True
        if ends:
            log.info("the skip lists are loaded again")
            self._places.clear()
        return not ends

    def _apply(self, event: Event, topics: list[str]) -> None:
        """Apply an event to its topic's skip lists; advance the places to its id."""
        match event.kind:
            case "skip":
                self._put_skip(json.loads(event.data))
            case "suspect":
                self._note_suspect(json.loads(event.data))
            case "unskip":
                self._remove_skip(json.loads(event.data))
            case "fence":
                self._pass_fence(json.loads(event.data))
                return
            case _:  # a ping, or an event of a newer server
                pass
        self._advance(event.id, topics)

    def _put_skip(self, data: object) -> None:
        """Put a skip into its topic's skip lists, which check if it is needed."""
        for doubt in _doubts(data):
            for skip_list in self._lists_of(doubt.skip.topic):
                skip_list.put_listed(doubt.skip, now=self._client.now())
                skip_list.doubt(doubt)

    def _note_suspect(self, data: object) -> None:
        """Note in the lists of its topic a message that another consumer failed on."""
        for doubt in _doubts(data):
            for skip_list in self._lists_of(doubt.skip.topic):
                skip_list.suspect(doubt, now=self._client.now())

    def _remove_skip(self, data: Mapping[str, Any]) -> None:
        """Remove a skip from the lists of its topic."""
        because = str(data.get("because") or "removed")
        for skip_list in self._lists_of(data["topic"]):
            skip_list.remove(int(data["id"]), because=because)

    def _pass_fence(self, data: Mapping[str, Any]) -> None:
        """Hand a position's fence, read from the stream, to its topic's skip lists."""
        fence = Fence(
            client_name=str(data["client_name"]),
            sub_id=str(data["sub_id"]),
            topic=str(data["topic"]),
            epoch=int(data["epoch"]),
        )
        for skip_list in self._lists_of(fence.topic):
            skip_list.fence(fence)

    def _advance(self, event_id: str, topics: list[str]) -> None:
        """Read the stream's places from an event's id; mark loaded lists as current."""
        # Revisions of other groups send no event here: the id skips them.
        epoch, _, revisions = event_id.rpartition(".")
        numbers = revisions.split(",")
        if len(numbers) != len(topics) or not all(map(str.isdecimal, numbers)):
            return
        for topic, number in zip(topics, numbers, strict=True):
            self._places[topic] = epoch, int(number)
        for skip_list in list(self._lists):
            if skip_list.age is not None:
                skip_list.touch()


def _read_lines(
    answer: StreamedAnswer, topic: str, tables: list[SkipTable]
) -> tuple[SkipListVersion, list[Doubt]]:
    """Read the server's snapshot of skips into the tables as it arrives.

    Return its epoch and revision, and its suspects.
    """
    suspects = list[Doubt]()
    try:
        head, blocks = skip_list_line_format.read(
            answer.lines(longest=skip_list_line_format.LONGEST_LINE)
        )
        for block in blocks:
            if block.of == "suspects":
                for row in block.rows():
                    suspects += _doubts({**row, "topic": topic})
            elif block.of == "skips":
                for table in tables:
                    table.add_block(block)
    except Invalid as wrong:
        raise Away(f"{_ANOTHER_FORM} {wrong.detail}") from None
    return head, suspects


def _read_json(
    content: Any, tables: list[SkipTable]
) -> tuple[SkipListVersion, list[Doubt]]:
    """Read a skip list's JSON snapshot of an older server into the tables."""
    try:
        head = SkipListVersion(str(content["epoch"]), int(content["revision"]))
        skips, suspects = list(content["skips"]), list(content.get("suspects") or ())
    except _UNREADABLE:
        raise Away(_ANOTHER_FORM) from None
    for skip in map(_parse_or_log, skips):
        for table in tables:
            if skip is not None:
                table.add(skip)
    return head, list(chain.from_iterable(map(_doubts, suspects)))


def _doubts(data: object) -> list[Doubt]:
    """Parse a skip with what identifies its message: message id and number.

    Return it in a list, or [] if it is unreadable.
    """
    skip = _parse_or_log(data)
    if skip is None or not isinstance(data, Mapping):
        return []
    message_id, seq = data.get("message_id"), data.get("seq")
    return [
        Doubt(
            skip=skip,
            message_id=message_id if isinstance(message_id, str) else None,
            seq=seq if type(seq) is int else None,
            since=time.monotonic(),
        )
    ]


def _parse_or_log(data: object) -> Skip | None:
    """Parse a skip; return None for kinds that only a newer server knows."""
    try:
        return parse_skip(data)
    except Invalid as wrong:
        log.warning("a skip is not understood and not applied: %s", wrong.detail)
        return None
