"""A guarded consumer in a process of its own, which does as it is told, in order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from poisonguard import Guard, RetryPolicy
from poisonguard.readers.plain import PlainReader
from tests import preloaded_fork_server

FORKS = preloaded_fork_server.of(__name__)

Message = Mapping[str, Any]


class Remote:
    """The near end: every call is done over there, one after the other."""

    def __init__(self, ours: Connection) -> None:
        self._ours = ours

    def handle(self, *messages: Message) -> list[str]:
        """Hand messages to the consumer; return outcomes. A body of `bad` fails."""
        outcomes: list[str] = self._ask("handle", messages)
        return outcomes

    def health(self) -> dict[str, Any]:
        health: dict[str, Any] = self._ask("health", None)
        return health

    def begin(self, messages: Iterable[Message]) -> None:
        """Hand messages to the consumer as `handle` does, without a wait; see `end`."""
        self._ours.send(("handle", tuple(messages)))

    def end(self) -> list[str]:
        return self._ours.recv()  # type: ignore[no-any-return]

    def _ask(self, word: str, argument: object) -> Any:
        self._ours.send((word, argument))
        return self._ours.recv()


@contextmanager
def guarded(folder: Path, *, sick: bool = False, **options: Any) -> Iterator[Remote]:
    """Start a consumer whose broker replays; a sick one can handle nothing at all."""
    ours, theirs = FORKS.Pipe()
    process = FORKS.Process(target=_obey, args=(theirs, folder, sick, options))
    process.start()
    theirs.close()
    yield Remote(ours)
    ours.send(("close", None))
    process.join(300)
    assert process.exitcode == 0


def _obey(theirs: Connection, folder: Path, sick: bool, options: Any) -> None:
    handled: Counter[str] = Counter()

    def handle(message: Message) -> None:
        if sick or message["body"] == "bad":
            raise ValueError("this one is bad")
        handled[message["bookmark"]] += 1

    guard = Guard(
        reader=PlainReader(seq="seq", replays=True),
        policy=RetryPolicy(max_attempts=1),
        journal=folder,
        **options,
    )
    with guard:
        while True:
            word, argument = theirs.recv()
            match word:
                case "handle":
                    outcomes = [guard.handle(message, handle) for message in argument]
                    theirs.send([str(outcome) for outcome in outcomes])
                case "health":
                    theirs.send(guard.health())
                case _:
                    return


def message(n: int, *, bad: bool = False, **more: object) -> Message:
    return {"bookmark": f"b-{n}", "seq": n, "body": "bad" if bad else "good", **more}
