"""The wrapper of the seed on an HA client that goes from one server to another."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import AMPS
import pytest

from poisonguard import Guard
from poisonguard.amps import MisterYuck
from poisonguard.amps.mister_yuck import POISON_TOPIC
from poisonguard.errors import Misconfigured
from poisonguard.readers.amps import AmpsReader
from tests.amps.fake_amps_server import OWN, Amps
from tests.amps.test_mister_yuck_client_wrapper import No13, a_message, bodies, records
from tests.sdk.fake_poisonweb_server import running
from tests.sdk.guard_and_handler_builders import guarding
from tests.waiting import wait_until

EPOCH = AMPS.Client.Bookmarks.EPOCH
KEYS = {POISON_TOPIC: "bookmark"}
# How often one server takes over from another, and what each has published by then.
FAIL_OVERS, MESSAGES = (10, 2_000) if "SOAK" in os.environ else (1, 500)

Join = Callable[..., tuple[Any, MisterYuck, No13]]


@pytest.fixture
def pair() -> Iterator[tuple[Amps, Amps]]:
    """Return two servers that replicate each other."""
    with (
        Amps(keys=KEYS) as first,
        Amps(keys=KEYS, log=first.log, records=first.records) as second,
    ):
        yield first, second


@pytest.fixture
def join() -> Iterator[Join]:
    """Return a function that creates an HA client, its wrapper and its handler."""
    clients: list[Any] = []

    def join(chooser: Any, **more: Any) -> tuple[Any, MisterYuck, No13]:
        client = AMPS.HAClient(f"billing-{len(clients)}", no_store=True)
        clients.append(client)
        client.set_exception_listener(lambda _: None)
        client.set_server_chooser(chooser)
        if "heartbeat" in more:
            client.set_heartbeat(more["heartbeat"])
            client.set_timeout(1_000)
        client.connect_and_logon()
        handler = No13()
        protector = MisterYuck(client, handler, **more)
        clients.append(protector)
        return client, protector, handler

    yield join
    for one in reversed(clients):
        one.close()


@pytest.fixture
def row() -> Iterator[list[Amps]]:
    """Return servers that replicate each other; each takes over once."""
    with ExitStack() as stack:
        first = stack.enter_context(Amps(keys=KEYS))
        shared: dict[str, Any] = {"log": first.log, "records": first.records}
        others = [Amps(keys=KEYS, **shared) for _ in range(FAIL_OVERS)]
        yield [first, *map(stack.enter_context, others)]


def numbers(place: int) -> range:
    """Return the numbers of the messages published on these servers."""
    return range(1 + place * MESSAGES, 1 + (place + 1) * MESSAGES)


def chooser_of(*servers: Amps) -> Any:
    chooser = AMPS.DefaultServerChooser()
    for server in servers:
        chooser.add(server.url)
    return chooser


class Chooser:
    """A chooser of an application's own, whose servers want a password."""

    def __init__(self, *servers: Amps) -> None:
        self.urls = [server.url for server in servers]
        self.failures = 0

    def get_current_uri(self) -> str:
        return self.urls[self.failures % len(self.urls)]

    def get_current_authenticator(self) -> Any:
        return Password("of the chooser")

    def report_failure(self, error: Any, info: Any) -> None:
        self.failures += 1

    def report_success(self, info: Any) -> None: ...

    def get_error(self) -> str:
        return ""


class Password:
    def __init__(self, text: str) -> None:
        self.text = text

    def authenticate(self, user: str, password: str) -> str:
        return self.text

    def retry(self, user: str, password: str) -> str:
        return self.text

    def completed(self, user: str, password: str, reason: str) -> None: ...


def monitors(server: Amps) -> list[dict[str, Any]]:
    """Return how monitors logged on."""
    with server.lock:
        logons = [c for c in server.commands if c["c"] == "logon"]
    return [c for c in logons if c["client_name"].startswith("poison_monitor")]


def is_live_on(server: Amps, count: int) -> bool:
    with server.lock:
        topics = [s.topic for s in server.subscriptions]
    return topics.count(POISON_TOPIC) == count


def test_after_a_fail_over_the_list_is_live_and_reports_arrive(
    pair: tuple[Amps, Amps], join: Join
) -> None:
    first, second = pair
    _, ours, handler = join(chooser_of(first, second))
    _, theirs, _ = join(chooser_of(first, second))

    first.stop()
    wait_until(lambda: is_live_on(second, 2))
    with pytest.raises(ValueError, match="superstitious"):
        theirs(a_message("5|1|"))

    def skips() -> bool:
        ours(a_message("5|1|", '{"id":1}'))
        return ours.skipped > 0

    wait_until(skips)
    assert records(second) == {"5|1|": "I'm superstitious..."}
    assert 13 not in handler.tried


def test_a_fail_over_under_load_loses_no_message_and_no_report(
    row: list[Amps], join: Join
) -> None:
    members = [join(chooser_of(*row)) for _ in range(2)]
    for client, protector, _ in members:
        client.bookmark_subscribe(protector, "orders", EPOCH, sub_id="eu")
    last = row[-1]

    for place, (server, heir) in enumerate(pairwise(row)):
        tried = [len(handler.tried) for *_, handler in members]
        server.publish("orders", *bodies(*numbers(place)))
        wait_until(
            lambda: all(
                len(handler.tried) > before + 20
                for before, (*_, handler) in zip(tried, members, strict=True)  # noqa: B023
            )
        )
        server.stop()
        wait_until(lambda: is_live_on(heir, 2))  # noqa: B023
    last.publish("orders", *bodies(*numbers(len(row) - 1)))

    total = numbers(len(row) - 1)[-1]
    fine = {n for n in range(1, total + 1) if n % 13}
    wait_until(lambda: all({*handler.fine} == fine for *_, handler in members))
    wait_until(lambda: len(records(last)) == total // 13)
    assert {*records(last)} == {f"{OWN}|{n}|" for n in range(13, total + 1, 13)}
    wait_until(lambda: not any(protector._unpublished for _, protector, _ in members))


def test_with_a_heartbeat_a_server_that_falls_silent_is_left(
    pair: tuple[Amps, Amps], join: Join
) -> None:
    first, second = pair
    _, protector, _ = join(chooser_of(*pair), heartbeat=1)

    first.is_frozen = True

    wait_until(lambda: is_live_on(second, 1))
    with pytest.raises(ValueError, match="superstitious"):
        protector(a_message("5|1|"))
    assert records(second) == {"5|1|": "I'm superstitious..."}


def test_poison_found_between_two_servers_is_published_to_the_second(
    pair: tuple[Amps, Amps], join: Join
) -> None:
    first, second = pair
    _, protector, _ = join(chooser_of(first, second))
    first.silent = frozenset({"publish", "p", "flush", "logon"})
    second.silent = frozenset({"logon"})
    first.cut()

    with pytest.raises(ValueError, match="superstitious"):
        protector(a_message("5|1|"))
    first.stop()
    second.admit()

    wait_until(lambda: records(second) == {"5|1|": "I'm superstitious..."})
    wait_until(lambda: not protector._unpublished)


def test_the_monitor_goes_to_servers_of_its_own(
    pair: tuple[Amps, Amps], join: Join
) -> None:
    first, second = pair
    with Amps() as orders:
        _, protector, _ = join(chooser_of(orders), servers=[first.url, second.url])
        first.stop()
        wait_until(lambda: is_live_on(second, 1))

        with pytest.raises(ValueError, match="superstitious"):
            protector(a_message("5|1|"))

    assert records(second) == {"5|1|": "I'm superstitious..."}


def test_the_monitor_logs_on_as_the_chooser_of_the_client_says(
    pair: tuple[Amps, Amps], join: Join
) -> None:
    chooser = Chooser(*pair)

    join(chooser)
    pair[0].stop()

    wait_until(lambda: is_live_on(pair[1], 1))
    assert [c["pw"] for server in pair for c in monitors(server)] == [
        "of the chooser"
    ] * len(monitors(pair[0]) + monitors(pair[1]))


def test_the_monitor_logs_on_with_an_authenticator_of_its_own(
    pair: tuple[Amps, Amps], join: Join
) -> None:
    join(chooser_of(pair[0]), authenticator=Password("of its own"))

    assert [c["pw"] for c in monitors(pair[0])] == ["of its own"]


@pytest.mark.parametrize("is_given", [True, False])
def test_the_chooser_of_the_client_is_not_moved_by_the_monitor(
    pair: tuple[Amps, Amps], join: Join, is_given: bool
) -> None:
    chooser = Chooser(*pair)
    join(chooser, **({"servers": chooser} if is_given else {}))
    first = pair[0]
    with first.lock:
        peers = [s.connection for s in first.subscriptions]

    for peer in peers:  # of the monitor only
        peer.close()

    wait_until(lambda: len(monitors(first)) == 2 and is_live_on(first, 1))
    assert chooser.failures == 0


def test_a_list_that_is_cut_off_and_comes_back_is_logged(
    pair: tuple[Amps, Amps], join: Join, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "poisonguard.amps")
    first, second = pair
    first.records[POISON_TOPIC] = {"5|9|": b'{"bookmark":"5|9|","why":"bad"}'}
    join(chooser_of(first, second))

    first.stop()
    wait_until(lambda: is_live_on(second, 1))

    lines = f"{POISON_TOPIC} is live: 1 messages are poison"
    wait_until(lambda: caplog.text.count(lines) == 2)
    assert caplog.text.count("is not live until") == 1


def test_an_update_of_the_list_and_a_skip_are_logged(
    pair: tuple[Amps, Amps], join: Join, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "poisonguard.amps")
    _, protector, _ = join(chooser_of(pair[0]))

    pair[0].publish(POISON_TOPIC, json.dumps({"bookmark": "5|1|", "why": "x"}).encode())
    wait_until(
        lambda: "'5|1|' is poison, says ADMIN_PoisonMessages: 'x'" in caplog.text
    )
    protector(a_message("5|1|"))

    assert "skipped '5|1|': 'x'" in caplog.text


def test_closing_while_it_is_cut_off_ends_and_says_nothing(
    pair: tuple[Amps, Amps], join: Join, caplog: pytest.LogCaptureFixture
) -> None:
    _, protector, _ = join(chooser_of(*pair))
    for server in pair:
        server.stop()
    wait_until(lambda: "is not live until" in caplog.text)

    protector.close()

    assert [r for r in caplog.records if r.levelname == "ERROR"] == []


def test_a_client_without_a_server_is_refused() -> None:
    client = AMPS.HAClient("billing-1", no_store=True)

    with pytest.raises(Misconfigured, match="connect it first"):
        MisterYuck(client, No13())


@pytest.mark.parametrize("message", [None, b"bytes", {"bookmark": "5|1|"}, "text"])
def test_a_foreign_object_is_refused_and_charges_no_message(
    pair: tuple[Amps, Amps], join: Join, message: object
) -> None:
    _, protector, handler = join(chooser_of(pair[0]))

    with pytest.raises(Misconfigured, match="messages of the AMPS client"):
        protector(message)

    assert (handler.tried, records(pair[0])) == ([], {})


def test_a_record_that_is_no_text_does_no_harm(
    pair: tuple[Amps, Amps], join: Join, caplog: pytest.LogCaptureFixture
) -> None:
    pair[0].records[POISON_TOPIC] = {
        "1": b"\xff\xfe",
        "2": b'{"bookmark":"5|1|"}',
    }

    _, protector, _ = join(chooser_of(pair[0]))
    protector(a_message("5|1|"))

    assert protector.skipped == 1
    assert "names no bookmark" in caplog.text


@pytest.fixture
def guard_of() -> Iterator[Callable[..., Guard]]:
    with ExitStack() as stack:
        server = stack.enter_context(running())

        def make(**more: Any) -> Guard:
            more = {"reader": AmpsReader(), **more}
            return stack.enter_context(guarding(server, **more))

        yield make


def test_with_a_guard_poison_is_published_reported_and_raised(
    pair: tuple[Amps, Amps], join: Join, guard_of: Callable[..., Guard]
) -> None:
    client, protector, handler = join(chooser_of(*pair), guard=guard_of())
    pair[0].publish("orders", *bodies(12, 13, 14))

    client.bookmark_subscribe(protector, "orders", EPOCH, sub_id="eu")

    wait_until(lambda: 14 in handler.fine)
    assert handler.tried == [12, 13, 13, 14]  # its policy has two attempts
    assert records(pair[0]) == {f"{OWN}|2|": "I'm superstitious..."}
    with pytest.raises(ValueError, match="superstitious"):
        protector(a_message("5|1|"))


def test_with_a_guard_poison_of_others_is_skipped_by_either_list(
    pair: tuple[Amps, Amps], join: Join, guard_of: Callable[..., Guard]
) -> None:
    guard = guard_of()
    _, protector, handler = join(chooser_of(*pair), guard=guard)
    _, other, _ = join(chooser_of(*pair), guard=guard)

    with pytest.raises(ValueError, match="superstitious"):
        other(a_message("5|1|"))
    wait_until(lambda: "5|1|" in protector._why)
    protector(a_message("5|1|"))
    protector._why.clear()
    protector(a_message("5|1|"))

    assert (protector.skipped, handler.tried) == (2, [])


def test_a_released_message_is_neither_published_nor_discarded(
    pair: tuple[Amps, Amps], join: Join, guard_of: Callable[..., Guard]
) -> None:
    guard = guard_of()
    _, protector, _ = join(chooser_of(*pair), guard=guard)
    discarded: list[Any] = []
    protector._discard = discarded.append
    guard.close()

    protector(a_message("5|1|"))

    assert (records(pair[0]), discarded, protector._why) == ({}, [], {})


def test_with_a_guard_a_killer_is_published_without_running_it(
    pair: tuple[Amps, Amps],
    join: Join,
    guard_of: Callable[..., Guard],
    tmp_path: Path,
) -> None:
    guard = guard_of(journal=tmp_path / "journal")
    _, protector, handler = join(chooser_of(*pair), guard=guard)
    message = a_message("5|1|")
    attempts = guard._new_running.keywords["journal"].attempts
    for _ in range(2):  # as many as the limit
        number = AmpsReader().number(message)
        attempts.count_crash(number, now=datetime.now(UTC), reason="SIGSEGV")

    protector(message)

    assert handler.tried == []
    assert records(pair[0]) == {"5|1|": "poison (crash)"}
