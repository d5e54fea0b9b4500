"""A request is answered member by member, in order."""

from __future__ import annotations

import pytest

from apps.core.batch_requests import Batch
from apps.core.errors import Invalid
from poisonguard import contract


def parse(value: object) -> int:
    if isinstance(value, str):
        raise Invalid("runs/0", "send a number")
    if not isinstance(value, int):
        raise contract.Invalid("", "the item must be a number.")
    return value


def reject(pointer: str, detail: str) -> str:
    return f"{pointer}: {detail}"


def test_each_member_is_answered_in_its_place() -> None:
    batch = Batch([1, "x", 2, None, 3], parse, reject)

    batch.answer(lambda number: "even" if number % 2 == 0 else None)

    assert batch.unanswered == [1, 3]
    assert batch.in_order(["one", "three"]) == [
        "one",
        "/runs/0: runs/0: send a number",
        "even",
        ": the item must be a number.",
        "three",
    ]


def test_a_member_without_an_answer_is_an_error() -> None:
    batch = Batch([1, 2], parse, reject)

    with pytest.raises(ValueError, match="shorter"):
        batch.in_order(["one"])


def test_an_empty_request_has_no_answers() -> None:
    assert Batch([], parse, reject).in_order([]) == []


def test_an_error_of_a_whole_document_has_no_field_in_its_sentence() -> None:
    wrong = Invalid("", "send a JSON object")

    assert (str(wrong), wrong.pointer) == ("send a JSON object", "")
