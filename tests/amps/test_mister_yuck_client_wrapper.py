"""MisterYuck, which wraps an AMPS client, under the real client."""

from __future__ import annotations

import gc
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import AMPS
import pytest

from poisonguard.amps import MisterYuck
from poisonguard.amps.mister_yuck import POISON_TOPIC, WHY_LIMIT
from poisonguard.errors import StartTimeout, Stopping
from tests.amps.conftest import Connect, Open
from tests.amps.fake_amps_server import OWN, Amps
from tests.sdk.fake_poisonweb_server import FakeServer
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
EPOCH, RECENT = AMPS.Client.Bookmarks.EPOCH, AMPS.Client.Bookmarks.MOST_RECENT

Wrap = Callable[..., MisterYuck]


@pytest.fixture
def client(amps: Amps, absorbed: list[BaseException]) -> Iterator[Any]:
    """Return a plain client, as the seed has it."""
    client = AMPS.Client("handler_demo")
    client.set_exception_listener(absorbed.append)
    client.connect(amps.url)
    client.logon()
    yield client
    client.close()


@pytest.fixture
def wrap() -> Iterator[Wrap]:
    guards: list[MisterYuck] = []

    def make(client: Any, handler: Callable[[Any], object], **more: Any) -> MisterYuck:
        guards.append(MisterYuck(client, handler, **more))
        return guards[-1]

    yield make
    for protector in guards:
        protector.close()


class No13:
    """The seed's handler: it fails for ids divisible by 13."""

    def __init__(self) -> None:
        self.fine: list[int] = []
        self.tried: list[int] = []

    def __call__(self, message: Any) -> None:
        number = json.loads(message.get_data())["id"]
        self.tried.append(number)
        if number % 13 == 0:
            raise ValueError("I'm superstitious...")
        self.fine.append(number)


def bodies(*ids: int) -> list[bytes]:
    return [b'{"id":%d}' % number for number in ids]


def a_message(bookmark: str, data: str = '{"id":13}') -> Any:
    message = AMPS.Message()
    message.set_bookmark(bookmark)
    message.set_data(data)
    return message


def fails_with(error: BaseException) -> Callable[[Any], None]:
    def handler(message: Any) -> None:
        raise error

    return handler


def records(amps: Amps) -> dict[str, str]:
    """Return the reasons in the topic, by bookmark."""
    with amps.lock:
        records = amps.records.get(POISON_TOPIC, {}).values()
        return {
            record["bookmark"]: record["why"] for record in map(json.loads, records)
        }


def test_the_program_of_the_seed_runs_as_it_is(
    amps: Amps, client: Any, wrap: Wrap, absorbed: list[BaseException]
) -> None:
    amps.publish("ContentTopic", *bodies(*range(1, 31)))
    handler = No13()

    protector = wrap(client, handler)
    client.bookmark_subscribe(protector, "ContentTopic", bookmark=EPOCH)

    wait_until(lambda: 30 in handler.fine)
    assert handler.fine == [n for n in range(1, 31) if n % 13]
    assert records(amps) == dict.fromkeys(
        [f"{OWN}|13|", f"{OWN}|26|"], "I'm superstitious..."
    )
    assert [str(error) for error in absorbed] == ["I'm superstitious..."] * 2


def test_a_new_instance_never_handles_what_is_known_to_be_bad(
    amps: Amps, client: Any, wrap: Wrap, absorbed: list[BaseException]
) -> None:
    amps.publish("ContentTopic", *bodies(12, 13, 14))
    first, second = No13(), No13()
    client.bookmark_subscribe(wrap(client, first), "ContentTopic", EPOCH)
    wait_until(lambda: 14 in first.fine)
    absorbed.clear()

    protector = wrap(client, second)
    client.bookmark_subscribe(protector, "ContentTopic", EPOCH)

    wait_until(lambda: 14 in second.fine)
    assert (second.tried, protector.skipped, absorbed) == ([12, 14], 1, [])


def test_poison_of_one_instance_is_skipped_by_the_others_without_a_restart(
    amps: Amps, client: Any, wrap: Wrap
) -> None:
    first, second = wrap(client, No13()), wrap(client, handler := No13())

    with pytest.raises(ValueError, match="superstitious"):
        first(a_message("5|1|"))

    def skips() -> bool:
        second(a_message("5|1|", '{"id":1}'))
        return second.skipped > 0

    wait_until(skips)
    assert 13 not in handler.tried


def test_its_own_poison_is_skipped_at_once(amps: Amps, client: Any, wrap: Wrap) -> None:
    amps.silent = frozenset({"publish", "p"})  # so nothing comes back from the topic
    protector = wrap(client, handler := No13())
    message = a_message("5|1|")

    with pytest.raises(ValueError, match="superstitious"):
        protector(message)
    protector(message)

    assert (records(amps), handler.tried, protector.skipped) == ({}, [13], 1)


def test_ten_thousand_known_poisons_are_loaded_before_the_first_message(
    amps: Amps, client: Any, wrap: Wrap
) -> None:
    amps.records[POISON_TOPIC] = {
        f"5|{n}|": b'{"bookmark":"5|%d|","why":"bad"}' % n for n in range(10_000)
    }
    protector = wrap(client, handler := No13())

    for number in (0, 5_000, 9_999, 10_000):
        protector(a_message(f"5|{number}|", '{"id":1}'))

    assert (protector.skipped, handler.tried) == (3, [1])


@pytest.mark.parametrize("command", ["logon", "sow_and_subscribe"])
def test_the_start_fails_when_the_list_is_not_loaded_in_time(
    amps: Amps, client: Any, command: str
) -> None:
    amps.silent = frozenset({command})

    with pytest.raises(StartTimeout, match="ADMIN_PoisonMessages"):
        MisterYuck(client, No13(), timeout=0.1)


def test_a_topic_that_is_no_sow_topic_ends_the_start(
    amps: Amps, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It takes the subscription, and has no records to begin and end with.
    monkeypatch.setattr(Amps, "sow", Amps.flush)

    with pytest.raises(StartTimeout):
        MisterYuck(client, No13(), timeout=0.1)


def test_closing_is_clean_however_often_and_nothing_is_handled_after(
    amps: Amps, client: Any, absorbed: list[BaseException]
) -> None:
    handler = No13()
    with MisterYuck(client, handler) as protector:
        pass
    protector.close()

    with pytest.raises(Stopping):
        protector(a_message("5|1|"))
    wait_until(lambda: len(amps.connections) == 1)
    del protector
    gc.collect()

    assert (handler.tried, absorbed) == ([], [])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('it said "no"\n\\', 'it said "no"\n\\'),
        ("nul \x00 and \ud800 half a pair", "nul \x00 and \ud800 half a pair"),
        ("", "ValueError"),
        ("long " * 10_000, ("long " * 10_000)[:10_000]),
    ],
)
def test_the_text_of_any_exception_is_published(
    amps: Amps,
    client: Any,
    wrap: Wrap,
    text: str,
    why: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    protector = wrap(client, fails_with(ValueError(text)))

    with pytest.raises(ValueError):  # noqa: PT011 - any text will do
        protector(a_message('5|1|"'))

    assert records(amps) == {'5|1|"': why}
    # And any log can be written: no half characters, and no novels.
    assert len(caplog.text.encode()) < 5_000


def test_an_exception_without_a_text_is_published_by_its_type(
    amps: Amps, client: Any, wrap: Wrap
) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    with pytest.raises(Mute):
        wrap(client, fails_with(Mute()))(a_message("5|1|"))

    assert records(amps) == {"5|1|": "Mute"}


def test_a_message_without_a_bookmark_does_not_make_all_others_poison(
    amps: Amps, client: Any, wrap: Wrap, caplog: pytest.LogCaptureFixture
) -> None:
    protector = wrap(client, handler := No13())

    with pytest.raises(ValueError, match="superstitious"):
        protector(a_message(""))
    protector(a_message("", '{"id":1}'))

    assert (handler.fine, records(amps), protector.skipped) == ([1], {}, 0)
    assert "without bookmark" in caplog.text


@pytest.mark.parametrize("error", [KeyboardInterrupt(), GeneratorExit()])
def test_an_interrupt_of_the_process_makes_no_poison(
    amps: Amps, client: Any, wrap: Wrap, error: BaseException
) -> None:
    protector = wrap(client, fails_with(error))

    with pytest.raises(type(error)):
        protector(a_message("5|1|"))

    assert (records(amps), protector.skipped) == ({}, 0)


def test_an_exit_on_the_main_thread_is_published_and_raised(
    amps: Amps, client: Any, wrap: Wrap
) -> None:
    with pytest.raises(SystemExit):
        wrap(client, fails_with(SystemExit(3)))(a_message("5|1|"))

    assert records(amps) == {"5|1|": "Fatal error: the handler ended the process (3)."}


def test_foreign_records_of_the_topic_are_ignored(
    amps: Amps, client: Any, wrap: Wrap, caplog: pytest.LogCaptureFixture
) -> None:
    deep, long = b"[" * 200_000, b'{"bookmark":"5|9|","why":"%s"}' % (b"x" * 10**6)
    texts = [b"no json", b"[]", b"{}", b'{"bookmark":7}', deep, long]
    texts.append(b'{"bookmark":"5|1|"}')
    amps.records[POISON_TOPIC] = {str(n): text for n, text in enumerate(texts)}

    protector = wrap(client, handler := No13())
    protector(a_message("5|1|"))
    protector(a_message("5|2|", '{"id":1}'))

    assert (protector.skipped, handler.tried) == (1, [1])
    assert caplog.text.count("names no bookmark") == 5
    assert max(map(len, protector._why.values())) <= WHY_LIMIT


def test_poison_found_while_the_server_is_away_is_published_on_its_return(
    amps: Amps, client: Any, wrap: Wrap, caplog: pytest.LogCaptureFixture
) -> None:
    protector = wrap(client, No13())
    amps.refuse()

    with pytest.raises(ValueError, match="superstitious"):
        protector(a_message("5|1|"))
    before = records(amps)
    amps.admit()

    wait_until(lambda: records(amps) == {"5|1|": "I'm superstitious..."})
    assert before == {}
    assert "told later" in caplog.text


def test_poison_does_not_pin_the_position_and_is_not_brought_again(
    amps: Amps,
    poisonweb: FakeServer,
    store_of: Open,
    connect: Connect,
    wrap: Wrap,
) -> None:
    amps.publish("orders", *bodies(12, 13, 14))
    store = store_of()
    client, handler = connect(store), No13()

    def settles(message: Any) -> None:
        handler(message)
        client.discard(message)

    client.bookmark_subscribe(wrap(client, settles), "orders", RECENT, "", "eu")
    wait_until(lambda: 14 in handler.fine)
    amps.cut()
    wait_until(lambda: len(amps.bookmarks_asked()) == 2)
    amps.publish("orders", *bodies(15))

    wait_until(lambda: 15 in handler.fine)
    assert handler.tried == [12, 13, 14, 15]
    assert amps.bookmarks_asked() == ["0", f"{OWN}|3|"]
    store.flush()
    assert poisonweb.positions["billing-1", "eu", "orders"].settled == {OWN: [[0, 4]]}


def test_unpublished_poison_is_not_discarded(
    amps: Amps, store_of: Open, connect: Connect, wrap: Wrap
) -> None:
    store = store_of()
    store.get_most_recent("eu")
    protector = wrap(connect(store), No13())
    message = a_message("5|1|")
    message.set_sub_id("eu")
    store.log(message)
    amps.refuse()

    with pytest.raises(ValueError, match="superstitious"):
        protector(message)
    protector(message)
    in_flight = store.health().in_flight
    amps.admit()
    wait_until(lambda: not protector._unpublished)
    protector(message)

    assert (in_flight, store.health().in_flight, protector.skipped) == (1, 0, 2)


def test_a_handler_that_exits_ends_the_process_and_the_next_one_skips_its_message(
    amps: Amps, poisonweb: FakeServer
) -> None:
    amps.publish("orders", *bodies(1, 2, 13, 4, 5))

    first = _run_to_its_end(amps, poisonweb)
    second = _run_to_its_end(amps, poisonweb)

    assert (first.returncode, first.stdout.split()) == (7, ["1", "2"])
    assert (second.returncode, second.stdout.split()) == (0, ["4", "5"])
    assert records(amps) == {
        f"{OWN}|3|": "Fatal error: the handler ended the process (7)."
    }
    assert amps.bookmarks_asked() == ["0", f"{OWN}|2|"]


def test_behind_a_guard_a_process_that_dies_twice_of_a_message_comes_through(
    amps: Amps, poisonweb: FakeServer, tmp_path: Path
) -> None:
    amps.publish("orders", *bodies(1, 2, 13, 4, 5))
    journal = str(tmp_path / "journal")

    lives = [_run_to_its_end(amps, poisonweb, journal) for _ in range(3)]

    assert [life.returncode for life in lives] == [9, 9, 0]
    assert lives[2].stdout.split() == ["4", "5"]
    assert records(amps) == {f"{OWN}|3|": "poison (crash)"}
    assert [f["cause"] for f in poisonweb.reports.failures.values()] == ["crash"]


def _run_to_its_end(
    amps: Amps, poisonweb: FakeServer, *journal: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.amps.exiting_consumer",
            amps.url,
            poisonweb.url,
            *journal,
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'sdk'}"},
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
