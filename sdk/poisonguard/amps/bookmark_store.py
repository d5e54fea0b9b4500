"""A bookmark store for the AMPS client, with its positions in Poisonweb."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from types import TracebackType
from typing import Any, Self

from poisonguard import bookmarks
from poisonguard.bookmarks import Health, Start
from poisonguard.errors import GuardError
from poisonguard.positions.subscription_progress import IN_FLIGHT_LIMIT, Resume
from poisonguard.readers.amps import text_of
from poisonguard.skipping.skip_list import Fence

log = logging.getLogger(__name__)

EPOCH, NOW = "0", "0|1|"  # the bookmarks of the beginning and of the end
PAUSE = 0.5  # seconds
_BOOKMARK = re.compile(r"(?<!\d)(\d{1,20})\|(\d{1,20})\|", re.ASCII)
# The client's name of a subscription without a sub id: the number of its command. After
# a restart another subscription may get it, so no position is stored under it. It is
# not refused, as the program in the AMPS article subscribes without a sub id.
_MADE_UP = re.compile(r"auto\d+")


class BookmarkStore:
    """A bookmark store for `Client.set_bookmark_store`, kept in Poisonweb.

    Subscribe with a sub id that stays the same and the bookmark `recent`. A message is
    settled by `client.discard(message)`, in any order; settled messages are not
    delivered again. `topics` names the topic of a sub id; without it, the topic of its
    first message is used.

    The client drops a message when its store raises. So this store raises only where no
    message can be lost: in `get_most_recent`, which refuses the subscription when the
    position cannot be read. A fenced holder still gets messages but settles none;
    in `on_fenced`, unsubscribe, or subscribe again to resume at the new position.
    """

    def __init__(  # noqa: PLR0913 - each a setting of its own
        self,
        url: str | Sequence[str],
        api_key: str | Callable[[], str],
        *,
        client_name: str,
        topics: Mapping[str, str] | None = None,
        start: Start | str = Start.EARLIEST,
        interval: float = 1.0,
        in_flight_limit: int = IN_FLIGHT_LIMIT,
        on_fenced: Callable[[str], object] | None = None,
    ) -> None:
        self._topics = dict(topics or {})
        self._start = Start(start)
        self._positions = bookmarks.BookmarkStore(
            url,
            api_key,
            client_name=client_name,
            interval=interval,
            in_flight_limit=in_flight_limit,
            on_fenced=on_fenced,
            bookmark=_bookmark,
        )

    # What the client calls

    def set_server_version(self, version: int) -> None:
        """Ignore the AMPS version: the store works alike for all versions."""

    def get_most_recent(self, sub_id: str) -> str:
        """Return where a subscription resumes: after a bookmark of each publisher."""
        if _MADE_UP.fullmatch(sub_id):
            self._positions.open_unkept(sub_id, start=self._start)
        resume = self._open(sub_id, self._topics.get(sub_id))
        self._positions.asked(sub_id, resume)
        return _resume_bookmarks(resume)

    def is_discarded(self, message: Any) -> bool:
        """Tell whether a message was settled before; the AMPS client drops it then."""
        sub_id = message.get_sub_id()
        self._open_if_new(sub_id, text_of(message.get_topic))
        places = _places(text_of(message.get_bookmark))
        if len(places) != 1:
            return False
        self._positions.arrived(sub_id, *places[0])
        return self._positions.is_settled(sub_id, *places[0])

    def log(self, message: Any) -> int:
        """Note that an AMPS message arrived; wait while its position is under pressure.

        Return its number, or 0.
        """
        sub_id, topic = message.get_sub_id(), text_of(message.get_topic) or None
        self._open_if_new(sub_id, topic)
        places = _places(text_of(message.get_bookmark))
        try:
            for place in places:
                self._positions.received(sub_id, *place, topic=topic)
            if not places:
                self._positions.received(sub_id, "", None)  # counts it as ignored
        except GuardError as reason:
            log.debug("A message of %s is not tracked: %s", sub_id, reason)
        return places[-1][1] if places else 0

    def discard_message(self, message: Any) -> None:
        """Settle a message in the position of its subscription.

        The client of AMPS calls it; the message is not delivered again.
        """
        for place in _places(text_of(message.get_bookmark)):
            self._positions.settle(message.get_sub_id(), *place)

    def persisted(self, sub_id: str, bookmark: str) -> None:
        """Note up to where AMPS has replicated this subscription's messages."""
        for place in _places(bookmark):
            self._positions.persisted(sub_id, *place)

    def _open_if_new(self, sub_id: str | None, topic: str | None) -> None:
        """Open the position of a subscription begun without `get_most_recent`.

        Never raise.
        """
        if not sub_id or self._positions.is_known(sub_id):
            return
        if _MADE_UP.fullmatch(sub_id):
            self._positions.open_unkept(sub_id, start=self._start)
            return
        topic = self._topics.get(sub_id) or topic or None
        try:
            self._open(sub_id, topic)
        except Exception:
            log.exception("%s begins without its position, which is read later", sub_id)
            self._positions.open_later(sub_id, topic, start=self._start)

    def _open(self, sub_id: str, topic: str | None) -> Resume:
        """Open an AMPS subscription if needed; return where it resumes.

        Pause before raising an error.
        """
        try:
            return self._positions.resume(sub_id, topic, start=self._start)
        except GuardError:
            # The client retries at once, and for ever.
            time.sleep(PAUSE)
            raise

    # What the application calls

    @property
    def fenced(self) -> frozenset[str]:
        """Return the ids of the fenced subscriptions.

        Another holder opened their positions, or a person moved these.
        """
        return self._positions.fenced

    def fence(self, fence: Fence) -> None:
        """Fence an AMPS subscription, as `on_fence` of the skip list reports.

        Without this, only the next write of its position notices.
        """
        self._positions.fence(fence)

    def health(self) -> Health:
        """Return the state of the stored positions, for health pages and logs."""
        return self._positions.health()

    def flush(self) -> None:
        """Write the positions of settled messages; raise the reason why that failed."""
        self._positions.flush()

    def close(self) -> None:
        """Flush and close the store of positions; close the client first."""
        self._positions.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._positions.__exit__(kind, error, traceback)


def _bookmark(publisher: str, seq: int) -> str:
    """Write a publisher's message number as a bookmark of AMPS."""
    return f"{publisher}|{seq}|"


def _resume_bookmarks(resume: Resume) -> str:
    """Return a bookmark for each publisher to resume; `p|0|` is p's beginning."""
    if not resume.positions:
        return NOW if resume.start is Start.NOW else EPOCH
    return ",".join(_bookmark(p, seq or 0) for p, seq in resume.positions.items())


# Called three times per message: on arrival, when logged, when discarded.
@lru_cache(4_096)
def _places(bookmark: str | None) -> tuple[tuple[str, int], ...]:
    """Parse an AMPS bookmark, or a list of them, to pairs of publisher and number.

    Ignore invalid ones.
    """
    matches = _BOOKMARK.findall(bookmark or "")
    return tuple((publisher, int(seq)) for publisher, seq in matches)
