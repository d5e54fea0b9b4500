"""Answer a request member by member: a bad one is rejected, and sinks no other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

from apps.core.errors import Invalid
from poisonguard import contract

Member = TypeVar("Member")
Answer = TypeVar("Answer")
# Makes the answer of a bad member, of its JSON Pointer into the member and a sentence.
Reject = Callable[[str, str], Answer]


class Batch(Generic[Member, Answer]):
    """The members of a request, until each has its answer.

    `unanswered` lists the valid ones that have no answer yet, in their order.
    """

    def __init__(
        self,
        values: Sequence[object],
        parse: Callable[[object], Member],
        reject: Reject[Answer],
    ) -> None:
        self._number = len(values)
        self._open: dict[int, Member] = {}
        self._answers: dict[int, Answer] = {}
        for place, value in enumerate(values):
            try:
                self._open[place] = parse(value)
            except Invalid as wrong:
                self._answers[place] = reject(wrong.pointer, str(wrong))
            except contract.Invalid as wrong:
                self._answers[place] = reject(wrong.pointer, wrong.detail)

    @property
    def unanswered(self) -> list[Member]:
        """Return the members of an API request that have no answer yet, in order."""
        return list(self._open.values())

    def answer(self, choose: Callable[[Member], Answer | None]) -> None:
        """Answer those members of an API request for which `choose` has an answer."""
        for place, member in list(self._open.items()):
            answer = choose(member)
            if answer is not None:
                self._answers[place] = answer
                del self._open[place]

    def in_order(self, answers: Iterable[Answer]) -> list[Answer]:
        """Return the batch's answers in order; `answers` are those of `unanswered`."""
        self._answers.update(zip(self._open, answers, strict=True))
        return [self._answers[place] for place in range(self._number)]
