"""What only Azure Storage Queues do, and what the docs promise their users."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from datetime import datetime, timedelta
from typing import cast

import pytest
from azure.core.exceptions import HttpResponseError
from azure.storage.queue import (
    AccountSasPermissions,
    ResourceTypes,
    generate_account_sas,
)

from apps.brokers.adapter_contract import (
    DeadLetter,
    DeadLetterReader,
    Outbound,
    OutcomeKind,
)
from apps.brokers.adapters.adapter import TopicSettings
from apps.brokers.adapters.azure_queue import azure_http_client
from apps.brokers.adapters.azure_queue.account import AzureAccount
from apps.brokers.adapters.azure_queue.adapter import ADAPTER
from apps.brokers.adapters.azure_queue.azure_http_client import AzureMessage, AzureWire
from apps.brokers.adapters.azure_queue.dead_lettering import AzureDeadLettering
from apps.brokers.adapters.azure_queue.message_text import ENCODING_HEADER, LARGEST_TEXT
from apps.brokers.adapters.azure_queue.settings import AzureQueueSettings
from apps.brokers.models import Topic
from apps.capture.intake.occurrence import from_dead_letter
from apps.core import clock
from apps.core.errors import Refused, Unavailable
from poisonguard.contract import Cause
from tests.brokers.azurite import ACCOUNT, KEY, LISTED_ACCOUNT, AzureQueueMessage
from tests.contracts.azure_queue_topic_fixture import (
    VISIBILITY_TIMEOUT,
    AzureStage,
    body_of,
)
from tests.contracts.conftest import StageOf
from tests.contracts.cutting_and_counting_proxies import cutting
from tests.contracts.topic_fixture_interface import MAX_DEQUEUE_COUNT
from tests.waiting import wait_until

pytestmark = pytest.mark.needs("azurite")

SENT, REFUSED, UNKNOWN = OutcomeKind.SENT, OutcomeKind.REFUSED, OutcomeKind.UNKNOWN
SOAK = "SOAK" in os.environ
ALL = 1_000 if SOAK else 50
CUTS = 200 if SOAK else 12
WEEK = 7 * 86_400

TEXTS = [
    '{"order": 1}',
    "eyJvcmRlciI6IDF9",
    "",
    " \t leading and trailing \n",
    "one\rtwo\r\nthree\n",
    "<a>&amp;</a> ]]> \"'",
    "Grüße \N{PILE OF POO} \u0085\u2028\ufffd",
    "test",
    "YQ==",
    "YR==",
]


@pytest.fixture
def azure(stage_of: StageOf) -> AzureStage:
    return cast("AzureStage", stage_of("azure_queue"))


# --- the case of the article


@pytest.fixture
def article(azure: AzureStage) -> AzureStage:
    """Five failures of each message of `request-queue-1`, under the article's names."""
    number = random.randrange(10**9)
    azure.topic = f"request-queue-{number}"
    azure.queue = f"request-queue-{number}-poison"
    azure.make(azure.topic)
    return azure


def article_reader(stage: AzureStage) -> DeadLetterReader:
    options = {
        "maxPollingInterval": "00:00:01",
        "visibilityTimeout": "00:00:00",
        "batchSize": 16,
        "maxDequeueCount": 5,
        "newBatchThreshold": 8,
    }
    topic = TopicSettings(topic=stage.topic, options=options)
    return ADAPTER.dead_letter_reader(stage.broker, topic)


def test_five_failures_move_a_message_to_the_poison_queue(article: AzureStage) -> None:
    article.put_text(article.topic, '{"request": 1}')
    reader = article_reader(article)

    article.fail(4)
    too_early = reader.dead_letter_exhausted()
    article.fail(1)
    in_time = reader.dead_letter_exhausted()
    (letter,) = reader.read(limit=10, wait=0)
    reader.close()

    assert (too_early, in_time) == (0, 1)
    assert (letter.queue, letter.body) == (article.queue, b'{"request": 1}')
    assert article.texts(article.topic) == []
    # The count is the policy of the topic: the queue's own counts our reads.
    captured = from_dead_letter(
        letter,
        topic=Topic(name=article.topic),
        capabilities=ADAPTER.capabilities,
        now=clock.now(),
    )
    assert (letter.dequeue_count, captured.dequeue_count) == (None, 5)
    assert captured.cause == Cause.MAX_DEQUEUE_COUNT


@pytest.mark.parametrize(("number", "suffix"), [(1, ""), (32, "-later"), (ALL, "")])
def test_any_number_goes_back_to_its_queue_or_to_a_temporary_one(
    article: AzureStage, number: int, suffix: str
) -> None:
    target = f"{article.topic}{suffix}"
    article.make(target)
    plain = ((ENCODING_HEADER, b"none"),)
    requests = [b"request %d" % n for n in range(number)]
    article.publisher().publish(
        [Outbound(topic=article.topic, body=b, headers=plain) for b in requests]
    )
    article.fail(5)
    reader = article_reader(article)

    moved = drained(reader)
    letters = reader.read(limit=number, wait=0)
    outcomes = article.publisher().publish([redriven(one, target) for one in letters])
    reader.acknowledge([letter.handle for letter in letters])
    reader.close()

    assert moved == len(letters) == number
    assert {outcome.kind for outcome in outcomes} == {SENT}
    assert sorted(article.texts(target)) == sorted(body.decode() for body in requests)
    assert {message.dequeue_count for message in article.look(target)} == {0}
    assert article.texts(article.queue) == []


def drained(reader: DeadLetterReader) -> int:
    moved = 0
    while more := reader.dead_letter_exhausted():
        moved += more
    return moved


# --- texts


def test_a_captured_message_is_redriven_with_the_same_text(azure: AzureStage) -> None:
    for text in TEXTS:
        azure.put_text(azure.queue, text)
    letters = azure.reader().read(limit=50, wait=0)

    back = [redriven(letter, azure.topic) for letter in letters]
    outcomes = azure.publisher().publish(back)

    assert {outcome.kind for outcome in outcomes} == {SENT}
    assert sorted(azure.texts(azure.topic)) == sorted(TEXTS)
    assert azure.texts(azure.queue) == TEXTS


def test_a_queue_of_plain_text_is_read_as_such(azure: AzureStage) -> None:
    azure.put_text(azure.queue, "test")
    (decoded,) = azure.reader().peek(limit=1)
    azure.options = {"messageEncoding": "none"}

    (plain,) = azure.reader().peek(limit=1)

    assert (decoded.body, decoded.headers) == (b"\xb5\xeb-", ())
    assert (plain.body, plain.headers) == (b"test", ((ENCODING_HEADER, b"none"),))


def test_a_broker_of_plain_text_writes_it_for_bodies_without_a_mark(
    azure: AzureStage,
) -> None:
    azure.broker_options = {"messageEncoding": "none"}
    bodies = [b"plain", b"\0", b"x" * LARGEST_TEXT, b"x" * (LARGEST_TEXT + 1)]

    outcomes = azure.publisher().publish([to(azure.topic, body) for body in bodies])

    assert [outcome.kind for outcome in outcomes] == [SENT, REFUSED, SENT, REFUSED]
    assert sorted(map(len, azure.texts(azure.topic))) == [5, LARGEST_TEXT]


def test_the_largest_text_in_the_most_escaped_form_arrives(azure: AzureStage) -> None:
    azure.put_text(azure.queue, "&" * LARGEST_TEXT)
    (letter,) = azure.reader().read(limit=1, wait=0)

    (outcome,) = azure.publisher().publish([redriven(letter, azure.topic)])

    assert (outcome.kind, outcome.detail) == (SENT, "")
    assert azure.texts(azure.topic) == azure.texts(azure.queue)


def test_unsendable_messages_stop_no_other(azure: AzureStage) -> None:
    hostile = [
        to("No Such Name", b""),
        to("../orders/messages", b""),
        to(f"{azure.topic}?comp=metadata", b""),
        to("nowhere", b""),
        to(azure.topic, b"x" * LARGEST_TEXT),
        Outbound(topic=azure.topic, body=b"", headers=((b"CC", b"victim"),)),
        Outbound(topic=azure.topic, body=b"\0", headers=((ENCODING_HEADER, b"none"),)),
        Outbound(topic=azure.topic, body=b"", headers=((ENCODING_HEADER, b"?"),)),
    ]
    good = [to(azure.topic, b"%d" % n) for n in range(50)]
    window = [*good[:25], *hostile, *good[25:]]

    outcomes = azure.publisher().publish(window)

    kinds = [outcome.kind for outcome in outcomes]
    assert kinds == [SENT] * 25 + [REFUSED] * len(hostile) + [SENT] * 25
    assert all(outcome.detail for outcome in outcomes[25 : 25 + len(hostile)])
    assert len(azure.texts(azure.topic)) == 50


def test_the_redrive_mark_stays_behind_and_other_headers_are_refused_by_name(
    azure: AzureStage,
) -> None:
    mark = (b"x-poisonweb-redrive", b"1.abc")
    marked = Outbound(topic=azure.topic, body=b"a", headers=(mark,))
    foreign = Outbound(
        topic=azure.topic, body=b"b", headers=((b"trace-id", b"1"), mark)
    )

    accepted, refused = azure.publisher().publish([marked, foreign])

    assert (accepted.kind, refused.kind) == (SENT, REFUSED)
    assert "'trace-id'." in refused.detail
    assert azure.contents(azure.topic) == [(b"a", ())]


def test_what_we_put_never_expires(azure: AzureStage) -> None:
    azure.put(azure.topic, b"exhausted")
    azure.fail(MAX_DEQUEUE_COUNT)

    azure.publisher().publish([to(azure.queue, b"sent")])
    azure.reader().dead_letter_exhausted()

    there = azure.look(azure.queue)
    assert len(there) == 2
    assert {message.expires_at[:4] for message in there} == {"9999"}


def test_a_message_may_be_delayed_for_a_week_and_no_longer(azure: AzureStage) -> None:
    client = azure.client(azure.topic)

    client.send_message("later", visibility_timeout=WEEK, time_to_live=-1)

    assert ADAPTER.capabilities.delay == WEEK
    with pytest.raises(HttpResponseError, match="OutOfRange"):
        client.send_message("later", visibility_timeout=WEEK + 1, time_to_live=-1)


# --- reading


def test_what_we_read_is_hidden_from_others_for_as_long_as_we_extend_it(
    azure: AzureStage,
) -> None:
    azure.put(azure.queue, b"ours")
    reader = azure.reader()
    (letter,) = reader.read(limit=1, wait=0)
    (before,) = azure.look(azure.queue)

    reader.extend([letter.handle])
    (after,) = azure.look(azure.queue)
    reader.acknowledge([letter.handle])

    assert after.visible_at > before.visible_at
    assert azure.texts(azure.queue) == []


def test_a_message_that_is_visible_again_is_not_returned_twice(
    azure: AzureStage,
) -> None:
    azure.put(azure.queue, b"ours")
    reader = azure.reader()
    (letter,) = reader.read(limit=1, wait=0)
    time.sleep(VISIBILITY_TIMEOUT + 0.1)  # by the clock of the server

    begun = clock.now()
    again = reader.read(limit=1, wait=0)
    (message,) = azure.look(azure.queue)
    reader.acknowledge([letter.handle])

    assert again == []
    assert hidden_for(message, begun) >= VISIBILITY_TIMEOUT
    assert azure.texts(azure.queue) == []


def test_a_message_taken_by_another_reader_is_left_to_it(
    azure: AzureStage,
) -> None:
    azure.put(azure.queue, b"ours")
    reader, others = azure.reader(), azure.client(azure.queue)
    (letter,) = reader.read(limit=1, wait=0)
    time.sleep(VISIBILITY_TIMEOUT + 0.1)  # by the clock of the server
    message = others.receive_message(visibility_timeout=1)

    reader.extend([letter.handle])
    reader.release([letter.handle])
    reader.acknowledge([letter.handle])

    assert message is not None
    assert azure.contents(azure.queue) == [(b"ours", ())]
    (again,) = reader.read(limit=1, wait=60)
    assert again.bookmark == letter.bookmark


def test_released_dead_letters_are_there_for_others_at_once(azure: AzureStage) -> None:
    azure.put_text(azure.queue, "one\r\ntwo")
    reader = azure.reader()
    (letter,) = reader.read(limit=1, wait=0)

    reader.release([letter.handle])
    (visible,) = azure.client(azure.queue).peek_messages()
    (again,) = reader.read(limit=1, wait=0)

    assert visible.content == "one\r\ntwo"
    assert again == letter


def test_a_batch_is_put_together_from_several_calls(azure: AzureStage) -> None:
    azure.publisher().publish([to(azure.queue, b"%d" % n) for n in range(100)])

    first = azure.reader().read(limit=90, wait=0)

    assert len({letter.bookmark for letter in first}) == 90


def test_peeking_changes_no_count_and_hides_nothing(azure: AzureStage) -> None:
    azure.publisher().publish([to(azure.queue, b"%d" % n) for n in range(40)])
    before = azure.look(azure.queue)

    letters = azure.reader().peek(limit=500)
    azure.admin().depth()
    oldest = azure.admin().oldest_at()
    azure.broker_admin().discover()

    assert len(letters) == 32
    assert {message.dequeue_count for message in before} == {0}
    assert azure.look(azure.queue) == before
    assert len(azure.client(azure.queue).peek_messages(32)) == 32
    assert oldest == min(letter.enqueued_at for letter in letters if letter.enqueued_at)
    assert abs(clock.now() - oldest) < timedelta(minutes=1)


def test_a_poison_queue_that_is_not_there_yet_has_nothing_to_read(
    azure: AzureStage,
) -> None:
    azure.client(azure.queue).delete_queue()
    reader, admin = azure.reader(), azure.admin()

    assert reader.read(limit=1, wait=0) == []
    assert reader.peek(limit=1) == []
    assert (admin.oldest_at(), admin.consumers()) == (None, [])


def test_azure_reports_neither_consumers_nor_deliveries(azure: AzureStage) -> None:
    assert azure.admin().delivered() is None
    assert not ADAPTER.capabilities.delivered


# --- dead-lettering in place of the runtime


def test_dead_lettering_leaves_an_unexhausted_message_at_the_head_alone(
    azure: AzureStage,
) -> None:
    azure.put(azure.topic, b"poison")
    azure.fail(MAX_DEQUEUE_COUNT - 1)
    azure.put(azure.topic, b"innocent")
    message = azure.client(azure.topic).receive_message()
    assert message is not None
    azure.client(azure.topic).update_message(message, visibility_timeout=1)
    time.sleep(1.1)  # by the clock of the server

    behind = azure.reader().dead_letter_exhausted()
    counts = {one.text: one.dequeue_count for one in azure.look(azure.topic)}
    azure.client(azure.topic).delete_message(
        azure.client(azure.topic).receive_message() or ""
    )
    leading = azure.reader().dead_letter_exhausted()

    assert (behind, leading) == (0, 1)
    assert sorted(counts.values()) == [0, MAX_DEQUEUE_COUNT]
    assert azure.contents(azure.topic) == []
    assert azure.contents(azure.queue) == [(b"poison", ())]


def test_an_unexhausted_message_taken_by_dead_lettering_is_returned_at_once(
    azure: AzureStage,
) -> None:
    azure.put(azure.topic, b"poison")
    azure.fail(MAX_DEQUEUE_COUNT)
    settings = AzureQueueSettings.of_topic(azure.broker, azure.settings)
    azure_calls = Overtaken(AzureAccount.parse(azure.url), stage=azure)

    moved = AzureDeadLettering(azure_calls, settings).move()
    azure_calls.close()

    (visible,) = azure.client(azure.topic).peek_messages()
    assert moved == 0
    assert (body_of(visible.content), visible.dequeue_count) == (b"innocent", 1)
    assert azure.contents(azure.queue) == []


class Overtaken(AzureWire):
    """A consumer takes what this has peeked at, and another message comes."""

    def __init__(self, account: AzureAccount, *, stage: AzureStage) -> None:
        super().__init__(account)
        self._stage = stage

    def peek(self, queue: str, *, count: int) -> list[AzureMessage]:
        messages = super().peek(queue, count=count)
        if len(self._stage.look(queue)) == 1:
            self._stage.client(queue).receive_message(visibility_timeout=60)
            self._stage.put(queue, b"innocent")
        return messages


def test_many_are_moved_in_batches_of_the_size_that_was_set(azure: AzureStage) -> None:
    azure.options = {"batchSize": 2, "newBatchThreshold": 1}
    azure.publisher().publish([to(azure.topic, b"%d" % n) for n in range(50)])
    azure.fail(MAX_DEQUEUE_COUNT)

    moved = azure.reader().dead_letter_exhausted()
    rest = drained(azure.reader())

    assert (moved, rest) == (40, 10)
    assert len(azure.texts(azure.queue)) == 50


def test_the_first_dead_letter_creates_the_poison_queue(azure: AzureStage) -> None:
    azure.client(azure.queue).delete_queue()
    azure.put_text(azure.topic, "one\rtwo")
    azure.fail(MAX_DEQUEUE_COUNT)

    moved = azure.reader().dead_letter_exhausted()

    assert moved == 1
    assert azure.texts(azure.queue) == ["one\rtwo"]


def test_a_message_that_the_poison_queue_refuses_is_returned_after_a_pause(
    azure: AzureStage, caplog: pytest.LogCaptureFixture
) -> None:
    azure.put(azure.topic, b"poison")
    azure.fail(MAX_DEQUEUE_COUNT)
    azure.options = {"visibilityTimeout": "00:00:01"}
    azure.url = signed(azure, "rup")  # read, update, process; not add

    begun = clock.now()
    moved = azure.reader().dead_letter_exhausted()
    (message,) = azure.look(azure.topic)
    later = wait_until(azure.client(azure.topic).peek_messages)

    assert (moved, len(later)) == (0, 1)
    assert hidden_for(message, begun) >= 1
    assert "not dead-lettered" in caplog.text
    assert azure.contents(azure.queue) == []


@pytest.mark.parametrize("seed", range(CUTS))
def test_a_message_is_in_its_queue_or_in_the_poison_queue_and_never_in_none(
    azure: AzureStage, seed: int
) -> None:
    azure.put(azure.topic, b"poison")
    azure.fail(MAX_DEQUEUE_COUNT)
    cut = random.Random(seed).randrange(2_400)
    cuts = {"after_requests": cut} if seed % 2 else {"after_replies": cut}

    with cutting(azure.server.port, **cuts) as port:
        azure.url = azure.server.url.replace(f":{azure.server.port}/", f":{port}/")
        moved = exhausted_over_a_bad_link(azure)

    there = len(azure.contents(azure.topic)), len(azure.contents(azure.queue))
    assert there in {(1, 0), (1, 1), (0, 1)}
    assert moved <= there[1]


def exhausted_over_a_bad_link(stage: AzureStage) -> int:
    reader = stage.reader()
    try:
        return reader.dead_letter_exhausted()
    except Unavailable:
        return 0
    finally:
        reader.close()


# --- the link


@pytest.mark.parametrize("seed", range(CUTS))
def test_sent_is_what_azure_confirmed_wherever_the_link_was_cut(
    azure: AzureStage, seed: int
) -> None:
    cut = random.Random(seed).randrange(12_000)
    cuts = {"after_requests": cut} if seed % 2 else {"after_replies": cut}

    with cutting(azure.server.port, **cuts) as port:
        azure.url = azure.server.url.replace(f":{azure.server.port}/", f":{port}/")
        kinds = published_one_by_one(azure, 12)

    there = sorted(int(body) for body, _ in azure.contents(azure.topic))
    confirmed = [number for number, kind in kinds.items() if kind is SENT]
    assert set(kinds.values()) <= {SENT, UNKNOWN}
    assert set(confirmed) <= set(there) <= set(kinds)
    assert len(there) == len(set(there))


def published_one_by_one(stage: AzureStage, count: int) -> dict[int, OutcomeKind]:
    """Send one by one over a connection until it breaks."""
    publisher, kinds = stage.publisher(), dict[int, OutcomeKind]()
    for number in range(count):
        try:
            (outcome,) = publisher.publish([to(stage.topic, b"%d" % number)])
        except Unavailable:
            break
        kinds[number] = outcome.kind
    publisher.close()
    return kinds


def test_only_requested_messages_are_unknown_when_azure_hangs(
    azure: AzureStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as impatient:
        impatient.setattr(azure_http_client, "REPLY_SECONDS", 2.0)
        publisher, reader = azure.publisher(), azure.reader()
    publisher.publish([to(azure.topic, b"before")])
    window = [to(azure.topic, b"%d" % n) for n in range(40)]

    azure.server.freeze()
    try:
        outcomes = publisher.publish(window)
        with pytest.raises(Unavailable, match="no answer in"):
            reader.read(limit=1, wait=0)
    finally:
        azure.server.thaw()
    again = azure.publisher().publish(window)

    assert {outcome.kind for outcome in outcomes} == {UNKNOWN, OutcomeKind.UNSENT}
    assert {outcome.kind for outcome in again} == {SENT}
    there = Counter(body for body, _ in azure.contents(azure.topic))
    assert set(there) == {b"before", *(message.body for message in window)}
    for message, outcome in zip(window, outcomes, strict=True):
        assert there[message.body] == 1 or outcome.kind is UNKNOWN


# --- accounts


def test_a_shared_access_signature_opens_all_ports(azure: AzureStage) -> None:
    azure.put(azure.queue, b"body")
    azure.url = signed(azure, "rwdlacup")
    reader = azure.reader()

    (letter,) = reader.read(limit=1, wait=0)
    (outcome,) = azure.publisher().publish([redriven(letter, azure.topic)])
    reader.acknowledge([letter.handle])

    assert outcome.kind is SENT
    assert azure.admin().depth() == 0
    assert azure.topic in {one.name for one in azure.broker_admin().discover()}
    assert azure.broker_admin().ping() == (
        f"Azure Storage Queues of {ACCOUNT}: Azurite-Queue/3.35.0"
    )


def test_a_call_beyond_the_signature_is_refused_in_azures_words(
    azure: AzureStage,
) -> None:
    azure.put(azure.queue, b"body")
    azure.url = signed(azure, "r")

    (outcome,) = azure.publisher().publish([to(azure.topic, b"")])

    assert outcome.kind is REFUSED
    assert "403 AuthorizationPermissionMismatch" in outcome.detail
    calls: list[Callable[[], object]] = [
        lambda: azure.reader().read(limit=1, wait=0),
        azure.broker_admin().ping,
        azure.broker_admin().discover,
    ]
    for call in calls:
        with pytest.raises(Refused, match="403 Authorization") as refused:
            call()
        assert "sig=" not in str(refused.value)
    assert len(azure.reader().peek(limit=1)) == 1


def test_the_error_of_a_wrong_key_does_not_quote_it(azure: AzureStage) -> None:
    wrong = "c2VjcmV0c2VjcmV0c2VjcmV0"
    azure.url = azure.url.replace(KEY, wrong)

    (outcome,) = azure.publisher().publish([to(azure.topic, b"")])
    with pytest.raises(Refused, match="403 AuthenticationFailed") as refused:
        azure.broker_admin().ping()

    assert outcome.kind is REFUSED
    assert wrong not in outcome.detail + str(refused.value)


def test_queues_are_found_page_by_page_and_beside_their_poison(
    azure: AzureStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(azure_http_client, "QUEUES_PAGE", 2)
    stage = AzureStage(azure.server, LISTED_ACCOUNT)
    lone = f"without-{stage.topic}-poison"
    stage.make(lone)
    stage.put(stage.topic, b"one")

    with closing(stage.broker_admin()) as admin:
        topics = {one.name: one for one in admin.discover()}

    assert (topics[stage.topic].depth, topics[stage.topic].dead_letters) == (1, 0)
    assert topics[stage.topic].dead_letter_queue == stage.queue
    assert stage.queue not in topics
    assert (topics[lone].dead_letter_queue, topics[lone].dead_letters) == ("", None)


def signed(stage: AzureStage, permission: str) -> str:
    signature = generate_account_sas(
        ACCOUNT,
        KEY,
        resource_types=ResourceTypes(service=True, container=True, object=True),
        permission=AccountSasPermissions.from_string(permission),
        expiry=clock.now() + timedelta(hours=1),
    )
    return f"{stage.server.endpoint}?{signature}"


def hidden_for(message: AzureQueueMessage, since: datetime) -> float:
    """Return the seconds for which a message is hidden, since a moment.

    Azurite says its times in whole milliseconds, cut off: so is the moment.
    """
    since = since.replace(microsecond=since.microsecond // 1000 * 1000)
    return (datetime.fromisoformat(message.visible_at) - since).total_seconds()


def to(topic: str, body: bytes) -> Outbound:
    return Outbound(topic=topic, body=body, headers=())


def redriven(letter: DeadLetter, topic: str) -> Outbound:
    return Outbound(topic=topic, body=letter.body, headers=letter.headers)
