"""Names that other processes see stay as they are, whatever is renamed inside."""

from __future__ import annotations

import json

import pytest

from tests.unit.public_names_in_code import ROOT, collect

pytestmark = pytest.mark.together

RELEASED: dict[str, list[str]] = json.loads(
    (ROOT / "tests" / "unit" / "released_names.json").read_text()
)
REMOVED = {
    # A preview keeps the ids that it selected, not the words of its selection.
    "triage_operation.scope",
    # The table is still there for the release before, but no model describes it: the
    # items of operations have another table, without states.
    *(
        f"triage_item.{column}"
        for column in (
            *("id", "operation_id", "poison_id", "state", "reason", "held"),
            "redrive_id",
        )
    ),
    *("triage_item_once", "triage_item_by_state", "triage_item_waiting"),
    "triage_item_one_open_operation_per_poison",
    *("triage_item_state_is_known", "triage_item_claimed_has_a_redrive"),
    *("triage_item_skipped_has_a_reason", "triage_item_is_held_only_while_open"),
    # A hold keeps a message from being sent twice at once.
    "poison_redrive_one_in_flight",
    # Another index of the trail serves the same queries.
    "audit_entry_at",
    # Nothing replaces a preview any more, so that no page has to say so.
    "elsewhere operations/elsewhere",
    # An example in a text of the API, which names three kinds of subjects now.
    "operation:12",
    # A reader took a constant from another module; it is in poisonguard.readers.amqp.
    "poisonguard.readers.pika.DELIVERY_COUNT",
    # Only the Makefile runs it, as a file: poisonweb/embedded/set_up_venv.py.
    "poisonweb.embedded.install",
}


@pytest.fixture(scope="module")
def names() -> dict[str, list[str]]:
    return collect()


@pytest.mark.parametrize("kind", RELEASED)
def test_each_name_that_was_released_is_still_there(
    names: dict[str, list[str]], kind: str
) -> None:
    missing = set(RELEASED[kind]) - set(names[kind])

    assert missing <= REMOVED


def test_each_exception_is_one_that_was_released_and_is_gone(
    names: dict[str, list[str]],
) -> None:
    released = {name for kind in RELEASED.values() for name in kind}
    today = {name for kind in names.values() for name in kind}

    assert released >= REMOVED
    assert not today & REMOVED
