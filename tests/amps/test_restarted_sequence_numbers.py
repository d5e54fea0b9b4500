"""Publishers whose numbers begin again, under the real AMPS client."""

from __future__ import annotations

import pytest

from poisonguard.errors import Refused
from tests.amps.conftest import Connect, Open
from tests.amps.fake_amps_server import OWN, Amps
from tests.amps.test_amps_bookmark_store import ORDERS, DiscardingHandler, bodies
from tests.sdk.fake_poisonweb_server import FakeServer
from tests.waiting import wait_until


def wipe(amps: Amps) -> None:
    """Delete the log: the next publisher starts with the number 1."""
    with amps.lock:
        amps.log.clear()


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]


def test_messages_with_restarted_numbers_are_handled_and_an_error_is_logged(
    amps: Amps,
    poisonweb: FakeServer,
    store_of: Open,
    connect: Connect,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = store_of()
    reader = DiscardingHandler(connect(store))
    reader.subscribe()
    amps.publish("orders", *bodies(*range(1, 6)))
    wait_until(lambda: len(reader.ids) == 5)

    wipe(amps)
    amps.publish("orders", *bodies(101, 102, 103))

    wait_until(lambda: len(reader.ids) == 8)
    with pytest.raises(Refused, match="began again on eu"):
        store.flush()
    health = store.health()
    assert reader.ids[5:] == [101, 102, 103]
    assert (health.duplicates, health.unwritten, health.in_flight) == (0, 3, 0)
    assert [f"numbers of publisher {OWN}" in line for line in errors(caplog)] == [True]
    assert "move the position to its start" in errors(caplog)[0]
    assert health.warnings == (errors(caplog)[0],)
    assert poisonweb.positions[ORDERS].settled == {OWN: [[0, 5]]}


def test_a_reconnect_asks_for_the_new_numbers_and_filters_them(
    amps: Amps, store_of: Open, connect: Connect
) -> None:
    reader = DiscardingHandler(connect(store_of()), leaves={102})
    reader.subscribe()
    amps.publish("orders", *bodies(*range(1, 6)))
    wait_until(lambda: len(reader.ids) == 5)
    wipe(amps)
    amps.publish("orders", *bodies(101, 102, 103))
    wait_until(lambda: len(reader.ids) == 8)

    amps.cut()
    wait_until(lambda: len(amps.bookmarks_asked()) == 2)
    amps.publish("orders", *bodies(104))

    wait_until(lambda: 104 in reader.ids)
    assert amps.bookmarks_asked()[-1] == f"{OWN}|1|"
    assert reader.ids[5:] == [101, 102, 103, 102, 104]


def test_restarted_numbers_are_noticed_at_the_next_resume(
    amps: Amps,
    poisonweb: FakeServer,
    store_of: Open,
    connect: Connect,
    caplog: pytest.LogCaptureFixture,
) -> None:
    amps.publish("orders", *bodies(*range(1, 6)))
    with store_of() as store:
        first = DiscardingHandler(client := connect(store))
        first.subscribe()
        wait_until(lambda: len(first.ids) == 5)
        client.close()
    wipe(amps)

    second = DiscardingHandler(connect(store_of()))
    second.subscribe()
    amps.publish("orders", *bodies(101, 102))

    wait_until(lambda: second.ids == [101, 102])
    assert len(errors(caplog)) == 1


def test_among_several_publishers_what_may_be_new_is_handled(
    amps: Amps,
    poisonweb: FakeServer,
    store_of: Open,
    connect: Connect,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for publisher in ("5", "6"):
        amps.publish("orders", *bodies(1, 2, 3), publisher=publisher)
    with store_of() as store:
        first = DiscardingHandler(client := connect(store))
        first.subscribe()
        wait_until(lambda: len(first.ids) == 6)
        client.close()
    with amps.lock:
        amps.log[:] = [m for m in amps.log if m.publisher == "6"]

    store = store_of()
    second = DiscardingHandler(connect(store))
    second.subscribe()
    amps.publish("orders", *bodies(101, 102, 103, 104), publisher="5")
    amps.publish("orders", *bodies(4), publisher="6")

    wait_until(lambda: second.ids == [101, 102, 103, 104, 4])
    assert ["may have begun again" in line for line in errors(caplog)] == [True]
    store.flush()
    assert poisonweb.positions[ORDERS].settled == {"5": [[0, 4]], "6": [[0, 4]]}


def test_once_a_person_has_moved_the_position_the_new_numbers_are_kept(
    amps: Amps, poisonweb: FakeServer, store_of: Open, connect: Connect
) -> None:
    store = store_of()
    reader = DiscardingHandler(client := connect(store))
    reader.subscribe()
    amps.publish("orders", *bodies(*range(1, 6)))
    wait_until(lambda: len(reader.ids) == 5)
    store.flush()
    wipe(amps)
    amps.publish("orders", *bodies(101, 102))
    wait_until(lambda: len(reader.ids) == 7)
    client.close()

    with poisonweb.changed:
        poisonweb.positions[ORDERS].settled.clear()
        poisonweb.positions[ORDERS].epoch += 1
    with store_of() as store:
        again = DiscardingHandler(client := connect(store))
        again.subscribe()
        wait_until(lambda: again.ids == [101, 102])
        client.close()

    assert poisonweb.positions[ORDERS].settled == {OWN: [[0, 2]]}
    assert store.health().warnings == ()
