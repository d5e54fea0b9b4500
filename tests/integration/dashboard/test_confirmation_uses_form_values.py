"""A confirmation uses the values of the form, even those changed after a preview.

Each field of each form that previews is changed, and its button is pressed: what the
form says is done, or nothing is, and a fresh preview keeps the reason that was typed.
A template that previews has its forms here: `FORMS`.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from apps.audit.models import Entry
from apps.audit.services import Action
from apps.bookmarks.models import Mark
from apps.brokers import sealed_addresses
from apps.brokers.models import Broker, Topic
from apps.capture.models import Lane, Mode
from apps.dashboard.selectors import operation_previews
from apps.outbox.models import Outbox
from apps.outbox.outbox_fields import SETTINGS
from apps.poison.models import Skip
from apps.poison.services.redrive_confirmations_by_token import confirm
from apps.poison.skip_addition_and_removal import OVERBROAD_AFTER
from apps.redelivery.models import Delivery, Endpoint
from apps.team.models import ApiKey
from apps.team.rights import Role, Scope
from apps.team.services import create_api_key
from apps.triage.models import Operation
from apps.triage.operation_states import VERBS, ItemKindName, Verb
from apps.triage.services import previews
from tests.failure_report_builders import drop, poisons
from tests.in_memory_queue_broker import KIND, Queues
from tests.integration.dashboard.conftest import SignIn
from tests.integration.dashboard.page_forms import PageForm, form_on
from tests.integration.dashboard.test_operations_on_deliveries_pages import stored
from tests.integration.outbox.conftest import broker_address, outbox, outbox_database
from tests.integration.outbox.outbox_builders import ADMIN, events, outbox_at
from tests.integration.outbox.test_row_decisions import quarantined
from tests.integration.redelivery.endpoint_and_delivery_builders import endpoint
from tests.position_opening_and_settling import opened, settle, update
from tests.sdk.outbox_sweeping.outbox_tables import OutboxTables
from tests.triage_operation_runner import redriven

pytestmark = pytest.mark.django_db(transaction=True)

__all__ = ["broker_address", "outbox", "outbox_database"]

REASON = "the invoice service is mended"
Preview = Callable[[], PageForm]


@pytest.fixture
def parking(orders: Topic) -> Topic:
    return Topic.objects.create(
        name="parking", native_name="parking", broker_id=orders.broker_id
    )


def preview_of(client: Client, verb: str, *, button: str, **form: Any) -> PageForm:
    response = client.post("/operations/preview", {"verb": verb, **form}, follow=True)
    return form_on(response, button=button)


@pytest.fixture
def requeue(ada: Client, parking: Topic, now: datetime) -> PageForm:
    ids = [poison.pk for poison in poisons(now, 2)]
    return preview_of(ada, "redrive", ids=ids, button="Requeue 2 messages")


@pytest.fixture
def answered_requeue(ada: Client, parking: Topic, now: datetime) -> PageForm:
    """Return a requeue's form where consumers have confirmed a redrive before."""
    (handled,) = poisons(now, 1)
    confirm(tokens=[(redriven(handled, now), "orders")], now=now)
    ids = [poison.pk for poison in poisons(now, 2)]
    return preview_of(ada, "redrive", ids=ids, button="Requeue 2 messages")


@pytest.fixture
def dropping(ada: Client, now: datetime, monkeypatch: pytest.MonkeyPatch) -> PageForm:
    monkeypatch.setattr(operation_previews, "MANY", 1)
    ids = [poison.pk for poison in poisons(now, 2)]
    return preview_of(ada, "drop", ids=ids, button="Drop 2 messages")


@pytest.fixture
def restoring(ada: Client, now: datetime) -> PageForm:
    dropped = poisons(now, 2)
    drop(now, *dropped)
    ids = [poison.pk for poison in dropped]
    return preview_of(ada, "restore", ids=ids, button="Restore 2 messages")


@pytest.fixture
def giving_back(ada: Client, orders: Topic, now: datetime) -> PageForm:
    poisons(now, 2)
    response = ada.post("/operations/preview", {"give_back": "orders"}, follow=True)
    return form_on(response, button='value="confirm"')


def preview_of_deliveries(client: Client, verb: str, state: str) -> PageForm:
    confirming = 'value="confirm"'
    return preview_of(client, verb, of="deliveries", state=state, button=confirming)


@pytest.fixture
def trying_now(ada: Client) -> PageForm:
    stored(endpoint(), 2)
    return preview_of_deliveries(ada, "try_now", "waiting")


@pytest.fixture
def giving_up(ada: Client, monkeypatch: pytest.MonkeyPatch) -> PageForm:
    monkeypatch.setattr(operation_previews, "MANY", 1)
    stored(endpoint(), 2)
    return preview_of_deliveries(ada, "give_up", "waiting")


@pytest.fixture
def restoring_deliveries(ada: Client) -> PageForm:
    stored(endpoint(retries=0, at_end="drop"), 2)
    return preview_of_deliveries(ada, "restore", "dropped")


def decision_on_one(client: Client, verb: str, **settings: Any) -> PageForm:
    (delivery,) = stored(endpoint(**settings), 1)
    chosen = {"verb": verb, "ids": [delivery]}
    return form_on(client.post("/deliveries/decide", chosen), button='name="confirm"')


@pytest.fixture
def retrying_one(ada: Client) -> PageForm:
    return decision_on_one(ada, "retry")


@pytest.fixture
def giving_up_one(ada: Client) -> PageForm:
    return decision_on_one(ada, "give_up")


@pytest.fixture
def restoring_one(ada: Client) -> PageForm:
    return decision_on_one(ada, "restore", retries=0, at_end="drop")


@pytest.fixture
def skip(ada: Client, orders: Topic, now: datetime) -> PageForm:
    # Enough messages that a rule which matches all of them must be ticked.
    poisons(now, OVERBROAD_AFTER, headers=[("tenant", b"acme")])
    form = {"topic": "orders", "by": "header", "where": "tenant", "value": "acme"}
    response = ada.post("/skips/new", {"act": "look", **form})
    return form_on(response, button='value="add"')


@pytest.fixture
def move(ada: Client, now: datetime) -> PageForm:
    (position,) = opened(now).positions
    settle(now, update(position.epoch, (0, 100)))
    response = ada.get(f"/positions/{position.pk}/move?strategy=shift&by=-60")
    return form_on(response, button="Move the position")


@pytest.fixture
def broker_removal(ada: Client) -> PageForm:
    broker = Broker.objects.create(
        name="ours", kind="redis_streams", url="env:BROKER_OURS"
    )
    return form_on(ada.get(f"/brokers/{broker.pk}/remove"), button="Remove ours")


@pytest.fixture
def topic_removal(ada: Client) -> PageForm:
    topic = Topic.objects.create(name="bills", native_name="bills")
    return form_on(ada.get(f"/topics/{topic.pk}/remove"), button="Remove bills")


@pytest.fixture
def endpoint_removal(ada: Client) -> PageForm:
    path = f"/endpoints/{endpoint().pk}/remove"
    return form_on(ada.get(path), button="Remove stock-quote")


@pytest.fixture
def outbox_removal(ada: Client, outbox: OutboxTables, broker: object) -> PageForm:
    path = f"/outboxes/{outbox_at(outbox.dsn).pk}/remove"
    return form_on(ada.get(path), button="Remove shop")


@pytest.fixture
def key_revocation(ada: Client, now: datetime) -> PageForm:
    create_api_key(name="ci", scopes=[Scope.POISONS_READ], actor=ADMIN.actor, now=now)
    path = f"/keys/{ApiKey.objects.get().pk}/revoke"
    return form_on(ada.get(path), button="Revoke ci")


def mode_form(client: Client, topic: Topic, mode: Mode) -> PageForm:
    response = client.get(f"/topics/{topic.pk}/mode?mode={mode}")
    return form_on(response, button=f"{mode.capitalize()} orders-poison")


@pytest.fixture
def tee(ada: Client, orders: Topic) -> PageForm:
    return mode_form(ada, orders, Mode.TEE)


@pytest.fixture
def observing(ada: Client, orders: Topic) -> PageForm:
    return mode_form(ada, orders, Mode.OBSERVE)


@pytest.fixture
def capturing(ada: Client, orders: Topic) -> PageForm:
    Lane.objects.update(mode=Mode.OBSERVE)
    return mode_form(ada, orders, Mode.CAPTURE)


def row_form(client: Client, outbox: OutboxTables, act: str) -> PageForm:
    path = f"/outboxes/{outbox_at(outbox.dsn).pk}/rows/{quarantined(outbox)}/{act}"
    return form_on(client.get(path), button=f"{act.capitalize()} row")


@pytest.fixture
def sending_a_row(ada: Client, outbox: OutboxTables, broker: object) -> PageForm:
    return row_form(ada, outbox, "send")


@pytest.fixture
def dropping_a_row(ada: Client, outbox: OutboxTables, broker: object) -> PageForm:
    return row_form(ada, outbox, "drop")


@pytest.fixture
def new_outbox(
    ada: Client, outbox: OutboxTables, broker: object, now: datetime
) -> PageForm:
    outbox.drop_unique_index()
    events()
    form = form_on(ada.get("/outboxes/new"), button="Look at its tables")
    url = f"{outbox.dsn}?sslmode=disable"
    response = form.press(ada, name="shop", url=url, broker="events")
    return form_on(response, button="Add it all the same")


OPERATION = "operations/_live_preview.html"
DELIVERIES = "deliveries/decision_confirmation.html"
ROW = "outboxes/decision_confirmation.html"
LANE_MODE = "topics/lane_mode_confirmation.html"
REQUEUE = {
    *("target_topic", "ordered", "reason"),
    *("rate", "ramped", "steps", "wait", "came_back"),
}
SKIP = {
    *("topic", "by", "where", "value", "consumer_group", "handler_version"),
    *("lives", "everything", "reason"),
}
NEW_OUTBOX = {
    *("name", "reason"),
    *(setting.name for setting in SETTINGS if setting.name != "is_paused"),
}
# The template of each form, and its fields.
FORMS = {
    "requeue": (OPERATION, REQUEUE),
    "answered_requeue": (OPERATION, REQUEUE | {"asks", "confirmed"}),
    "dropping": (OPERATION, {"reason", "typed"}),
    "restoring": (OPERATION, {"reason"}),
    "giving_back": (OPERATION, {"reason"}),
    "trying_now": (OPERATION, {"reason", "rate"}),
    "giving_up": (OPERATION, {"reason", "typed"}),
    "restoring_deliveries": (OPERATION, {"reason", "rate"}),
    "retrying_one": (DELIVERIES, {"reason"}),
    "giving_up_one": (DELIVERIES, {"reason"}),
    "restoring_one": (DELIVERIES, {"reason"}),
    "skip": ("skips/new.html", SKIP),
    "move": ("consumer_positions/move_confirmation.html", {"reason", "fence"}),
    "broker_removal": ("brokers/remove.html", {"reason"}),
    "topic_removal": ("topics/remove.html", {"reason"}),
    "endpoint_removal": ("endpoints/remove.html", {"reason"}),
    "outbox_removal": ("outboxes/remove.html", {"reason"}),
    "key_revocation": ("api_keys/revoke.html", set[str]()),
    "tee": (LANE_MODE, {"reason", "tee_queue"}),
    "observing": (LANE_MODE, {"reason"}),
    "capturing": (LANE_MODE, {"reason"}),
    "sending_a_row": (ROW, {"reason"}),
    "dropping_a_row": (ROW, {"reason"}),
    "new_outbox": ("outboxes/form.html", NEW_OUTBOX),
}
OPERATIONS = {
    "requeue": (ItemKindName.POISON, Verb.REDRIVE),
    "dropping": (ItemKindName.POISON, Verb.DROP),
    "restoring": (ItemKindName.POISON, Verb.RESTORE),
    "giving_back": (ItemKindName.POISON, Verb.GIVE_BACK),
    "trying_now": (ItemKindName.DELIVERY, Verb.TRY_NOW),
    "giving_up": (ItemKindName.DELIVERY, Verb.GIVE_UP),
    "restoring_deliveries": (ItemKindName.DELIVERY, Verb.RESTORE),
}
REMOVALS = [name for name in FORMS if name.endswith("_removal")]
# A page that asks before it acts says so, or has the focus on its Cancel.
SIGNS = ("othing has been done yet", "autofocus>Cancel")


def test_every_template_that_previews_has_a_form_here() -> None:
    folder = Path(__file__).parents[3] / "templates"
    previewing = {
        str(path.relative_to(folder))
        for path in folder.rglob("*.html")
        if any(sign in path.read_text() for sign in SIGNS)
    }

    assert previewing == {template for template, _ in FORMS.values()}


def test_every_operation_has_a_form_here() -> None:
    verbs = {(kind, verb) for kind, verbs in VERBS.items() for verb in verbs}

    assert set(OPERATIONS.values()) == verbs


@pytest.mark.parametrize("name", FORMS)
def test_every_field_of_the_form_has_a_test_here(
    name: str, request: pytest.FixtureRequest
) -> None:
    template, fields = FORMS[name]
    form: PageForm = request.getfixturevalue(name)

    assert form.visible == fields
    assert template in form.templates


@pytest.mark.parametrize(
    ("field", "value"), [("target_topic", "parking"), ("ordered", "1")]
)
def test_a_requeue_whose_route_changed_is_refused_with_a_fresh_preview_of_that_route(
    ada: Client, requeue: PageForm, field: str, value: str
) -> None:
    refused = requeue.press(ada, "confirm", reason=REASON, **{field: value})
    nothing_yet = Operation.objects.confirmed().count()
    new_form = form_on(refused, button="Requeue 2 messages")
    done = new_form.press(ada, "confirm")

    assert refused.status_code == 409
    assert "was changed after the preview" in refused.content.decode()
    assert (nothing_yet, done.status_code) == (0, 302)
    assert (new_form.values[field], new_form.values["reason"]) == (value, REASON)
    operation = Operation.objects.confirmed().get()
    target = operation.target_topic.name if operation.target_topic else ""
    assert (target, operation.ordered) == (
        ("parking", False) if field == "target_topic" else ("", True)
    )
    assert operation.reason == REASON


def test_a_requeue_is_as_fast_as_the_form_says(ada: Client, requeue: PageForm) -> None:
    limits = {"rate": "7", "ramped": "1", "steps": "2, 3", "wait": "9"}
    done = requeue.press(ada, "confirm", came_back="4", **limits)

    operation = Operation.objects.confirmed().get()
    assert (done.status_code, operation.rate) == (302, 7)
    assert operation.ramp == {
        "steps": [2, 3],
        "confirmed": None,
        "came_back": 4,
        "wait": 9,
    }


def test_the_typed_limits_survive_a_refusal(ada: Client, requeue: PageForm) -> None:
    limits = {"rate": "7", "ramped": "1", "steps": "2, 3", "wait": "9"}
    refused = requeue.press(ada, "confirm", target_topic="parking", **limits)
    form_on(refused, button="Requeue 2 messages").press(ada, "confirm")

    operation = Operation.objects.confirmed().get()
    assert operation.rate == 7
    assert operation.ramp
    assert operation.ramp["steps"] == [2, 3]


@pytest.mark.parametrize(
    ("changes", "percent"),
    [({}, 95), ({"confirmed": "80"}, 80), ({"asks": "quiet"}, None)],
)
def test_a_step_asks_for_the_confirmations_that_the_form_says(
    ada: Client,
    answered_requeue: PageForm,
    changes: dict[str, str],
    percent: int | None,
) -> None:
    answered_requeue.press(ada, "confirm", ramped="1", **changes)

    operation = Operation.objects.confirmed().get()
    assert operation.ramp
    assert operation.ramp["confirmed"] == percent


@pytest.mark.parametrize(
    ("changes", "percent"),
    [
        ({"asks": "confirmed", "confirmed": "80"}, 80),
        ({"asks": "quiet", "confirmed": "80"}, None),
    ],
)
def test_what_a_step_asks_for_survives_a_refusal(
    ada: Client,
    answered_requeue: PageForm,
    changes: dict[str, str],
    percent: int | None,
) -> None:
    refused = answered_requeue.press(ada, "confirm", ramped="1", ordered="1", **changes)
    form = form_on(refused, button="Requeue 2 messages")
    done = form.press(ada, "confirm")

    assert (refused.status_code, done.status_code) == (409, 302)
    assert form.values["asks"] == changes["asks"]
    operation = Operation.objects.confirmed().get()
    assert operation.ramp
    assert operation.ramp["confirmed"] == percent


RATES = "Give a whole number from 1 to 100,000, or none for no limit."


@pytest.mark.parametrize("percent", ["0", "101", "many"])
def test_an_impossible_percentage_is_refused_and_what_was_typed_stays(
    ada: Client, answered_requeue: PageForm, percent: str
) -> None:
    refused = answered_requeue.press(
        ada, "confirm", ramped="1", asks="quiet", confirmed=percent
    )

    form = form_on(refused, button="Requeue 2 messages")
    assert refused.status_code == 422
    assert (form.values["asks"], form.values["confirmed"]) == ("quiet", percent)
    assert not Operation.objects.confirmed().exists()


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        *(("rate", rate, RATES) for rate in ("0", "-1", "1000000000", "1e9", "fast")),
        ("steps", "1, x", "Give up to 20 numbers, such as 1, 5, 20, 100."),
        ("steps", "", "Give up to 20 numbers, such as 1, 5, 20, 100."),
        ("steps", "0", "Each step is 1 to 1,000,000 messages."),
        ("wait", "0", "Ensure this value is greater than or equal to 1."),
        ("wait", "3601", "Give 1 to 3600 seconds."),
        ("came_back", "101", "Ensure this value is less than or equal to 100."),
    ],
)
@pytest.mark.parametrize("act", ["confirm", "look"])
def test_an_impossible_limit_is_refused_with_the_reason_and_what_was_typed_stays(
    ada: Client, requeue: PageForm, act: str, field: str, value: str, why: str
) -> None:
    refused = requeue.press(ada, act, ramped="1", **{field: value})

    assert refused.status_code == 422
    assert why in refused.content.decode()
    assert form_on(refused, button="Requeue 2 messages").values[field] == value
    assert not Operation.objects.confirmed().exists()


@pytest.mark.parametrize(
    ("field", "value"), [("steps", "1, 5"), ("wait", "9"), ("came_back", "3")]
)
@pytest.mark.parametrize("act", ["confirm", "look"])
def test_steps_that_are_filled_in_but_not_ticked_send_nothing_at_once(
    ada: Client, requeue: PageForm, act: str, field: str, value: str
) -> None:
    refused = requeue.press(ada, act, **{field: value})

    assert refused.status_code == 422
    assert "Tick &quot;Send a few first&quot; to use these" in refused.content.decode()
    assert form_on(refused, button="Requeue 2 messages").values[field] == value
    assert not Operation.objects.confirmed().exists()


def test_steps_that_were_ticked_before_may_be_unticked(
    ada: Client, requeue: PageForm
) -> None:
    looked = requeue.press(ada, "look", ramped="1", steps="2, 3")
    form = form_on(ada.get(looked["Location"]), button="Requeue 2 messages")
    done = form.press(ada, "confirm", ramped="")

    assert form.values["steps"] == "2, 3"
    assert done.status_code == 302
    assert Operation.objects.confirmed().get().ramp is None


def test_a_wrong_time_is_explained_in_sight_where_the_steps_were_not_ticked(
    ada: Client, requeue: PageForm
) -> None:
    refused = requeue.press(ada, "confirm", wait="0").content.decode()

    opened_steps = refused.partition('<details class="field" open>')[2]
    assert "Ensure this value is greater than or equal to 1." in opened_steps


def test_another_topic_can_be_chosen_where_all_messages_are_too_large_for_theirs(
    ada: Client, broker: Queues, parking: Topic, now: datetime
) -> None:
    broker.with_(max_message=1)
    queues = Broker.objects.create(name="narrow", kind=KIND, url="")
    Topic.objects.create(name="narrow", native_name="narrow", broker=queues)
    (poison,) = poisons(now, 1, topic="narrow")

    form = preview_of(ada, "redrive", ids=[poison.pk], button="Preview again")
    looked = form.press(ada, "look", target_topic="parking")
    form_on(ada.get(looked["Location"]), button="Requeue 1 message")

    buttons = [button.get("value") for button in form.buttons]
    assert buttons == ["look"]


@pytest.fixture
def confirming(orders: Topic, now: datetime) -> None:
    """Let the consumers of `orders` confirm a requeue."""
    (poison,) = poisons(now, 1)
    token = redriven(poison, now)
    confirm(tokens=[(token, "orders")], now=now)


def test_the_page_offers_confirmations_only_for_what_goes_to_its_own_topic(
    confirming: None, ada: Client, requeue: PageForm
) -> None:
    looked = requeue.press(ada, "look", target_topic="parking")
    page = ada.get(looked["Location"])

    assert "asks" in requeue.visible
    assert "asks" not in form_on(page, button="Requeue 2 messages").visible
    assert "What is sent to another topic cannot be confirmed" in page.content.decode()


@pytest.mark.parametrize("act", ["confirm", "look"])
def test_confirmations_of_what_goes_elsewhere_are_refused_beside_the_field(
    confirming: None, ada: Client, requeue: PageForm, act: str
) -> None:
    ramp = {"ramped": "1", "asks": "confirmed"}
    refused = requeue.press(ada, act, target_topic="parking", **ramp)

    assert refused.status_code == 422
    assert "given back, is never confirmed" in refused.content.decode()
    assert not Operation.objects.confirmed().exists()


def test_preview_again_shows_the_chosen_route_and_keeps_the_typed_reason(
    ada: Client, requeue: PageForm
) -> None:
    looked = requeue.press(ada, "look", target_topic="parking", reason=REASON)
    page = ada.get(looked["Location"])
    new_form = form_on(page, button="Requeue 2 messages")

    assert looked.status_code == 302
    assert "will be sent to" in page.content.decode()
    assert (new_form.values["target_topic"], new_form.values["reason"]) == (
        "parking",
        REASON,
    )
    assert not Operation.objects.confirmed().exists()


def test_a_preview_in_order_says_that_a_refusal_holds_up_its_whole_topic(
    ada: Client, requeue: PageForm
) -> None:
    looked = requeue.press(ada, "look", ordered="1")
    page = ada.get(looked["Location"]).content.decode()

    assert "all behind it that go to the same topic stay here" in page


def test_a_route_back_to_the_origin_is_refused_when_another_topic_was_previewed(
    ada: Client, requeue: PageForm
) -> None:
    looked = requeue.press(ada, "look", target_topic="parking")
    new_form = form_on(ada.get(looked["Location"]), button="Requeue 2 messages")

    refused = new_form.press(ada, "confirm", target_topic="", reason=REASON)

    assert refused.status_code == 409
    assert "their topic" in refused.content.decode()
    assert not Operation.objects.confirmed().exists()


def test_a_target_that_is_gone_is_named_beside_the_field_and_the_reason_survives(
    ada: Client, requeue: PageForm, parking: Topic
) -> None:
    parking.delete()

    refused = requeue.press(ada, "confirm", target_topic="parking", reason=REASON)

    assert refused.status_code == 422
    assert 'id="target-wrong"' in refused.content.decode()
    form = form_on(refused, button="Requeue 2 messages")
    assert form.values["reason"] == REASON
    assert not Operation.objects.confirmed().exists()


def test_an_order_that_the_chosen_topic_does_not_keep_is_refused_beside_the_field(
    ada: Client, requeue: PageForm, parking: Topic
) -> None:
    queue = Broker.objects.create(
        name="sqs", kind="azure_queue", url="env:BROKER_NOWHERE"
    )
    Topic.objects.filter(pk=parking.pk).update(broker=queue)

    refused = requeue.press(
        ada, "confirm", target_topic="parking", ordered="1", reason=REASON
    )

    form = form_on(refused, button="Requeue 2 messages")
    assert refused.status_code == 422
    assert 'id="ordered-wrong"' in refused.content.decode()
    assert (form.values["target_topic"], form.values["ordered"]) == ("parking", "1")
    assert form.values["reason"] == REASON


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_does_what_its_form_says_for_the_reason_that_stands_there(
    ada: Client, name: str, request: pytest.FixtureRequest
) -> None:
    form: PageForm = request.getfixturevalue(name)

    done = form.press(ada, "confirm", reason=REASON, typed="2")

    assert done.status_code == 302, done.content
    operation = Operation.objects.confirmed().latest("pk")
    assert (operation.kind, operation.verb) == OPERATIONS[name]
    assert (operation.reason, operation.will_act) == (REASON, 2)


@pytest.mark.parametrize("name", ["trying_now", "restoring_deliveries"])
def test_deliveries_are_tried_as_fast_as_the_form_says(
    ada: Client, name: str, now: datetime, request: pytest.FixtureRequest
) -> None:
    form: PageForm = request.getfixturevalue(name)

    wrong = form.press(ada, "confirm", rate="0")
    typed = form_on(wrong, button='value="confirm"').values["rate"]
    Operation.objects.previews().update(expires_at=now)
    refused = form.press(ada, "confirm", rate="7")
    form_on(refused, button='value="confirm"').press(ada, "confirm")

    assert (wrong.status_code, typed, refused.status_code) == (422, "0", 409)
    assert Operation.objects.confirmed().get().rate == 7


@pytest.mark.parametrize("name", ["dropping", "giving_up"])
def test_another_number_than_the_previewed_is_refused_and_the_reason_survives(
    ada: Client, name: str, request: pytest.FixtureRequest
) -> None:
    form: PageForm = request.getfixturevalue(name)

    refused = form.press(ada, "confirm", reason=REASON, typed="3")

    assert refused.status_code == 422
    form = form_on(refused, button='value="confirm"')
    assert form.values["reason"] == REASON
    assert not Operation.objects.confirmed().exists()


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_expired_preview_is_refused_with_a_fresh_one_that_keeps_the_reason(
    ada: Client, name: str, now: datetime, request: pytest.FixtureRequest
) -> None:
    form: PageForm = request.getfixturevalue(name)
    Operation.objects.previews().update(expires_at=now)

    refused = form.press(ada, "confirm", reason=REASON, typed="2")
    new_form = form_on(refused, button='value="confirm"')
    done = new_form.press(ada, "confirm", typed="2")

    assert (refused.status_code, done.status_code) == (409, 302)
    assert Operation.objects.confirmed().latest("pk").reason == REASON


def test_a_fresh_preview_that_a_worker_still_takes_is_polled_and_keeps_the_reason(
    ada: Client, orders: Topic, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    poisons(now, 2)
    every = {"q": "topic:orders", "everything": "1"}
    requeue = preview_of(ada, "redrive", button="Requeue 2 messages", **every)
    monkeypatch.setattr(previews, "TAKEN_AT_ONCE", 1)

    refused = requeue.press(ada, "confirm", reason=REASON, ordered="1")
    new_preview = Operation.objects.latest("pk")
    address = f"/operations/preview?token={new_preview.token}"
    previews.take(operation_id=new_preview.pk, now=now)
    form = form_on(ada.get(address), button="Requeue 2 messages")

    assert f'hx-get="{address}&amp;' in refused.content.decode()
    assert (form.values["ordered"], form.values["reason"]) == ("1", REASON)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("topic", "bills"),
        ("by", "pointer"),
        ("where", "customer"),
        ("value", "other"),
        ("consumer_group", "billing"),
        ("handler_version", "2026.11.20"),
    ],
)
def test_a_skip_that_was_changed_is_refused_with_a_fresh_look_and_the_reason_survives(
    ada: Client, skip: PageForm, field: str, value: str
) -> None:
    Topic.objects.create(name="bills", native_name="bills")

    refused = skip.press(ada, "add", reason=REASON, everything="1", **{field: value})

    form = form_on(refused, button="What consumers will pass over")
    assert refused.status_code in {409, 422}
    assert (form.values[field], form.values["reason"]) == (value, REASON)
    assert not Skip.objects.exists()


@pytest.mark.parametrize(("lives", "days"), [("week", 7), ("quarter", 90)])
def test_a_skip_ends_when_the_form_says_and_has_its_reason(
    ada: Client, skip: PageForm, now: datetime, lives: str, days: int
) -> None:
    done = skip.press(ada, "add", reason=REASON, lives=lives, everything="1")

    added = Skip.objects.get()
    assert done.status_code == 302
    assert added.expires_at is not None
    assert (added.expires_at - now).days in {days - 1, days}
    assert added.reason == REASON


def test_a_skip_of_every_message_is_added_only_while_its_box_is_ticked(
    ada: Client, skip: PageForm
) -> None:
    refused = skip.press(ada, "add", reason=REASON)
    again = form_on(refused, button='value="add"')
    done = again.press(ada, "add", everything="1")

    assert (refused.status_code, done.status_code) == (422, 302)
    assert Skip.objects.get().reason == REASON


def test_a_move_needs_the_fence_of_a_holder_at_work_and_keeps_the_reason(
    ada: Client, move: PageForm
) -> None:
    refused = move.press(ada, reason=REASON)
    untouched = Mark.objects.get().processed
    again = form_on(refused, button="Move the position")
    done = again.press(ada, fence="1")

    assert (refused.status_code, untouched) == (409, 100)
    assert (done.status_code, Mark.objects.get().processed) == (302, 40)
    assert Entry.objects.latest("seq").reason == REASON


@pytest.mark.parametrize("name", REMOVALS)
def test_a_removal_has_the_reason_that_stands_in_the_form(
    ada: Client, name: str, request: pytest.FixtureRequest
) -> None:
    form: PageForm = request.getfixturevalue(name)

    done = form.press(ada, reason=REASON)

    assert done.status_code == 302
    assert Entry.objects.latest("seq").reason == REASON


@pytest.mark.parametrize("name", ["endpoint_removal", "outbox_removal"])
def test_a_reason_that_is_too_long_removes_nothing_and_stays(
    ada: Client, name: str, request: pytest.FixtureRequest
) -> None:
    form: PageForm = request.getfixturevalue(name)

    refused = form.press(ada, reason="r" * 10_000)

    again = form_on(refused, button="Remove")
    assert refused.status_code == 422
    assert again.values["reason"] == "r" * 10_000
    assert Endpoint.objects.count() + Outbox.objects.count() == 1


def test_a_key_is_revoked_as_its_page_says(
    ada: Client, key_revocation: PageForm
) -> None:
    assert key_revocation.press(ada).status_code == 302
    assert ApiKey.objects.get().revoked_at


@pytest.mark.parametrize(
    ("name", "state"),
    [
        ("retrying_one", "waiting"),
        ("giving_up_one", "given_up"),
        ("restoring_one", "waiting"),
    ],
)
def test_a_decision_on_a_delivery_has_the_reason_that_stands_in_the_form(
    ada: Client, name: str, state: str, request: pytest.FixtureRequest
) -> None:
    form: PageForm = request.getfixturevalue(name)

    done = form.press(ada, confirm="1", reason=REASON)

    assert (done.status_code, Delivery.objects.get().state) == (302, state)
    assert Entry.objects.latest("seq").reason == REASON


@pytest.mark.parametrize(
    ("name", "action", "column"),
    [
        ("sending_a_row", Action.OUTBOX_ROW_RELEASED, "released_at"),
        ("dropping_a_row", Action.OUTBOX_ROW_DROPPED, "dropped_at"),
    ],
)
def test_a_decision_on_a_row_has_the_reason_that_stands_in_the_form(
    *,
    ada: Client,
    outbox: OutboxTables,
    name: str,
    action: Action,
    column: str,
    request: pytest.FixtureRequest,
) -> None:
    form: PageForm = request.getfixturevalue(name)

    done = form.press(ada, reason=REASON)

    entry = Entry.objects.latest("seq")
    assert (done.status_code, outbox.count(f"{column} IS NOT NULL")) == (302, 1)
    assert (entry.action, entry.reason) == (action, REASON)


@pytest.mark.parametrize(
    ("name", "mode"), [("observing", "observe"), ("capturing", "capture")]
)
def test_a_lane_has_the_mode_and_reason_that_stand_in_the_form(
    ada: Client, name: str, mode: str, request: pytest.FixtureRequest
) -> None:
    form: PageForm = request.getfixturevalue(name)
    Topic.objects.update(dead_letter_queue="orders-errors")

    refused = form.press(ada, reason=REASON)
    mode_before = Lane.objects.get().mode
    done = form_on(refused, button=" orders-errors").press(ada)

    assert (refused.status_code, done.status_code) == (422, 302)
    assert (mode_before != mode, Lane.objects.get().mode) == (True, mode)
    assert Entry.objects.latest("seq").reason == REASON


def test_a_lane_does_not_capture_another_queue_than_the_page_showed(
    ada: Client, tee: PageForm, orders: Topic
) -> None:
    Topic.objects.filter(pk=orders.pk).update(dead_letter_queue="orders-errors")

    refused = tee.press(ada, tee_queue="copies", reason=REASON)
    mode_before = Lane.objects.get().mode
    again = form_on(refused, button="Tee orders-errors")
    done = again.press(ada)

    lane = Lane.objects.get()
    assert (refused.status_code, mode_before, done.status_code) == (422, "capture", 302)
    assert (lane.mode, lane.tee_queue) == ("tee", "copies")
    assert Entry.objects.latest("seq").reason == REASON


def test_a_tee_copies_to_the_queue_that_stands_in_the_form(
    ada: Client, tee: PageForm
) -> None:
    refused = tee.press(ada, tee_queue="orders", reason=REASON)
    again = form_on(refused, button="Tee orders-poison")
    done = again.press(ada, tee_queue="copies")

    lane = Lane.objects.get()
    assert (refused.status_code, done.status_code) == (422, 302)
    assert (lane.mode, lane.tee_queue) == ("tee", "copies")
    assert Entry.objects.latest("seq").reason == REASON


@pytest.mark.parametrize(
    ("field", "value"),
    [("url", "postgresql://sweeper:sesame@127.0.0.1:1/shop"), ("schema", "elsewhere")],
)
def test_an_outbox_of_other_tables_than_were_looked_at_is_looked_at_first(
    ada: Client, new_outbox: PageForm, field: str, value: str
) -> None:
    refused = new_outbox.press(ada, reason=REASON, **{field: value})
    number = Outbox.objects.count()
    again = form_on(refused, button="Add it all the same")
    done = again.press(ada)

    assert (refused.status_code, number, done.status_code) == (409, 0, 302)
    assert "is not the one whose tables you looked at" in refused.content.decode()
    assert (again.values[field], again.values["reason"]) == (value, REASON)
    added = Outbox.objects.get()
    assert sealed_addresses.reveal(added.url) == again.values["url"]
    assert added.schema == again.values["schema"]
    assert Entry.objects.latest("seq").reason == REASON


def test_an_outbox_has_what_stands_in_the_form_beside_the_faults_of_its_tables(
    ada: Client, new_outbox: PageForm
) -> None:
    changes = {"name": "store", "window": "77"}

    done = new_outbox.press(ada, reason=REASON, **changes)

    added = Outbox.objects.get()
    assert done.status_code == 302
    assert (added.name, added.window) == ("store", 77)
    assert Entry.objects.latest("seq").reason == REASON


def test_faults_that_another_person_looked_at_are_shown_first(
    new_outbox: PageForm, sign_in: SignIn
) -> None:
    refused = new_outbox.press(sign_in(Role.ADMIN))

    assert refused.status_code == 409
    assert "What is wrong with its tables" in refused.content.decode()
    assert not Outbox.objects.exists()
