from __future__ import annotations

import gzip
import json
import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress

import pytest

from poisonguard.errors import Away, Misconfigured, Refused
from poisonguard.server import http_client as clients
from poisonguard.server.backoff import Backoff
from poisonguard.server.http_client import GZIP_FROM, Client
from poisonguard.server.server_sent_events import Event, parse
from tests.manual_clock import ManualClock
from tests.sdk.fake_poisonweb_server import KEY, FakeServer, running
from tests.waiting import wait_until

OPEN = {"client_name": "billing-1", "sub_id": "eu", "topic": "orders"}


@pytest.fixture
def client(server: FakeServer) -> Iterator[Client]:
    client = Client([server.url], KEY, timeout=60)
    yield client
    client.close()


def test_reads_and_writes_json(server: FakeServer, client: Client) -> None:
    server.skip_list.add(kind="bookmark", value="7")

    read = client.get("/skips", [("topic", "orders")])
    written = client.post("/positions/open", OPEN)
    removed = client.delete("/skips/1", {"reason": "it was the build"})

    assert [skip["id"] for skip in read["skips"]] == [1]
    assert written["epoch"] == 1
    assert removed["id"] == 1
    assert server.requests[-1] == (
        "DELETE",
        "/api/v1/skips/1",
        {"reason": "it was the build"},
    )


def test_sends_topics_as_they_are_called(server: FakeServer, client: Client) -> None:
    topic = "/sample/bookmark Store?&=%ä"

    client.get("/skips", [("topic", topic)])

    assert client.get("/skips", [("topic", topic)])["revision"] == 0
    assert server.requests[0][1].startswith("/api/v1/skips?topic=%2Fsample%2F")


@pytest.mark.parametrize("status", [500, 502, 503, 429, 408])
def test_an_overloaded_or_broken_server_is_away(
    status: int, server: FakeServer, client: Client
) -> None:
    server.faults.answer(status, times=1)

    with pytest.raises(Away, match=str(status)):
        client.get("/skips", [("topic", "orders")])

    assert client.get("/skips", [("topic", "orders")])["skips"] == []


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 413, 422])
def test_a_client_error_of_the_server_is_refused(
    status: int, server: FakeServer, client: Client
) -> None:
    server.faults.answer(status)

    with pytest.raises(Refused, match="so the test wants") as refused:
        client.post("/positions/open", OPEN)

    assert refused.value.status == status


def test_a_wrong_key_is_refused_with_the_remedy_and_without_the_key(
    server: FakeServer,
) -> None:
    client = Client([server.url], "pw_test_secret")

    with pytest.raises(Refused, match="check the API key") as refused:
        client.get("/skips", [("topic", "orders")])

    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("key", ["", "  ", "two words", "line\nend", "clé"])
def test_a_key_unfit_for_a_header_is_refused_without_showing_it(
    key: str, server: FakeServer
) -> None:
    client = Client([server.url], key)

    with pytest.raises(Misconfigured) as wrong:
        client.get("/skips", [("topic", "orders")])

    assert not key.strip() or key not in str(wrong.value)
    assert server.requests == []


def test_a_key_may_change_while_we_run_and_may_end_a_line(server: FakeServer) -> None:
    keys = iter(["pw_old", f"{KEY}\n"])
    client = Client([server.url], lambda: next(keys))

    with pytest.raises(Refused):
        client.get("/skips", [("topic", "orders")])

    assert client.get("/skips", [("topic", "orders")])["skips"] == []


@pytest.mark.parametrize(
    "url",
    [
        *("poisonweb", "ftp://h", "ftp://u:p@h", "http://"),
        *("http://u:p@h", "http://h?a=1"),
    ],
)
def test_an_unusable_url_is_refused_at_once(url: str) -> None:
    with pytest.raises(Misconfigured) as wrong:
        Client([url], KEY)

    assert "u:p" not in str(wrong.value)


def test_a_redirect_is_not_followed(server: FakeServer, client: Client) -> None:
    with running() as elsewhere:
        server.faults.answer(302, headers={"Location": elsewhere.url})

        with pytest.raises(Refused, match=elsewhere.url):
            client.get("/skips", [("topic", "orders")])

        assert elsewhere.requests == []


def test_a_proxy_of_the_environment_is_not_used_and_a_given_one_is(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running() as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        Client([server.url], KEY).get("/skips", [("topic", "orders")])
        request_count = len(proxy.requests)

        with pytest.raises(Refused):
            Client(["http://poisonweb.invalid"], KEY, proxy=proxy.url).get("/nothing")

        assert request_count == 0
        assert proxy.requests[0][1] == "http://poisonweb.invalid/api/v1/nothing"


def test_what_answers_but_is_not_poisonweb_is_away() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=_answer_html, args=[listening], daemon=True).start()
        client = Client([f"http://127.0.0.1:{listening.getsockname()[1]}"], KEY)

        with pytest.raises(Away, match="no JSON"):
            client.get("/skips")


def _answer_html(listening: socket.socket) -> None:
    connection, _ = listening.accept()
    with connection:
        connection.recv(65_536)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>")


def test_a_frozen_server_is_away_after_the_time_out(server: FakeServer) -> None:
    client = Client([server.url], KEY, timeout=0.2)
    server.faults.freeze()

    with pytest.raises(Away, match=server.url):
        client.get("/skips", [("topic", "orders")])

    server.faults.thaw()
    wait_until(lambda: skips_of(client) == [])


def skips_of(client: Client) -> list[object] | None:
    """Return the skips of a server that may be too busy to answer in time."""
    with suppress(Away):
        skips: list[object] = client.get("/skips", [("topic", "orders")])["skips"]
        return skips
    return None


def test_another_url_takes_over_and_is_kept(
    server: FakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    with running() as other:
        client = Client([server.url, other.url], KEY)
        client.get("/skips", [("topic", "orders")])
        server.stop()
        client.get("/skips", [("topic", "orders")])
        server.start()

        client.get("/skips", [("topic", "orders")])

        assert (len(server.requests), len(other.requests)) == (1, 2)
        assert client.url == other.url
        assert f"{other.url} is used from now on" in caplog.text


def test_a_refusal_is_final_whatever_other_urls_there_are(server: FakeServer) -> None:
    with running() as other:
        server.faults.answer(422)

        with pytest.raises(Refused):
            Client([server.url, other.url], KEY).get("/skips")

        assert other.requests == []


def test_all_urls_away_are_all_named(server: FakeServer) -> None:
    with running() as other:
        client = Client([server.url, other.url], KEY)
        server.stop()
        other.stop()

        with pytest.raises(Away) as away:
            client.get("/skips")

        assert server.url in str(away.value)
        assert other.url in str(away.value)


def test_failing_over_ends_the_streams_of_the_url_that_is_away(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "STREAM_SILENCE", 600.0)
    ended = threading.Event()

    def follow(client: Client) -> None:
        with client.stream("/skips/stream", [("topic", "orders")], None) as events:
            for event in events:
                assert event.kind == "ping"
        ended.set()

    with running() as other:
        client = Client([server.url, other.url], KEY, timeout=0.5)
        threading.Thread(target=follow, args=[client], daemon=True).start()
        server.until(lambda: server.stream.readers)
        server.faults.freeze()

        wait_until(lambda: skips_of(client) == [])

        assert ended.wait(60)
        assert client.url == other.url


def test_retry_after_is_honoured(server: FakeServer, client: Client) -> None:
    server.faults.answer(429, times=1, headers={"Retry-After": "30"})
    with pytest.raises(Away, match="429"):
        client.post("/positions/open", OPEN)

    with pytest.raises(Away, match="patience"):
        client.post("/positions/open", OPEN)
    with pytest.raises(Away, match="patience"):
        client.get("/skips", [("topic", "orders")])

    assert len(server.requests) == 1


def test_a_skip_list_may_be_read_again_a_second_after_a_503(
    server: FakeServer,
) -> None:
    clock = ManualClock(now=0.0)
    with closing(Client([server.url], KEY, timer=clock)) as client:
        server.faults.answer(503, times=1, headers={"Retry-After": "30"})
        with pytest.raises(Away, match="503"):
            client.post("/positions/open", OPEN)

        clock.now += 0.9
        with pytest.raises(Away, match="patience"):
            client.get("/skips", [("topic", "orders")])
        clock.now += 0.2
        assert client.get("/skips", [("topic", "orders")])["skips"] == []
        with pytest.raises(Away, match="patience"):
            client.post("/positions/open", OPEN)
        clock.now += 29.0
        assert client.post("/positions/open", OPEN)["epoch"] == 1


@pytest.mark.parametrize(
    "retry_after", ["soon", "-5", "", "Fri, 99 Foo 2026", "9" * 40]
)
def test_an_invalid_retry_after_is_ignored(
    retry_after: str, server: FakeServer, client: Client
) -> None:
    server.faults.answer(503, times=1, headers={"Retry-After": retry_after})
    with pytest.raises(Away, match="503"):
        client.post("/positions/open", OPEN)

    assert client.post("/positions/open", OPEN)["epoch"] == 1


def test_a_long_body_travels_as_gzip_and_a_short_one_as_it_is(
    server: FakeServer, client: Client
) -> None:
    client.post("/positions/open", OPEN)
    long = "".join(str(number) for number in range(GZIP_FROM))
    client.post("/positions/open", {**OPEN, "note": long})

    short_headers, long_headers = server.headers
    assert "content-encoding" not in short_headers
    assert long_headers["content-encoding"] == "gzip"
    assert server.requests[1][2]["note"] == long


def test_a_body_that_would_inflate_too_far_is_sent_uncompressed(
    server: FakeServer, client: Client
) -> None:
    uniform = "A" * 1_000_000
    assert len(gzip.compress(uniform.encode())) * 200 < len(uniform)

    client.post("/positions/open", {**OPEN, "note": uniform})

    assert "content-encoding" not in server.headers[0]
    assert server.requests[0][2]["note"] == uniform


@pytest.mark.parametrize(("shift", "way"), [(3600.0, "behind"), (-3600.0, "ahead of")])
def test_a_clock_skew_is_warned_about_once_with_the_remedy(
    shift: float,
    way: str,
    server: FakeServer,
    client: Client,
    caplog: pytest.LogCaptureFixture,
) -> None:
    server.date_shift = shift
    with caplog.at_level(logging.WARNING):
        client.get("/skips", [("topic", "orders")])
        client.get("/skips", [("topic", "orders")])

    warning = client.skew_warning or ""
    assert f"s {way} the server's" in warning
    assert "NTP" in warning
    assert caplog.text.count("NTP") == 1

    server.date_shift = 0
    client.get("/skips", [("topic", "orders")])
    assert client.skew_warning is None


def test_a_stream_gives_events_as_they_come_and_resumes(
    server: FakeServer, client: Client
) -> None:
    server.stream.ping_every = 60
    with client.stream("/skips/stream", [("topic", "orders")], None) as events:
        assert next(events) == Event("ping", "{}", "e1.0")
        server.skip_list.add(kind="bookmark", value="1")
        first = next(events)
    server.skip_list.add(kind="bookmark", value="2")

    with client.stream("/skips/stream", [("topic", "orders")], first.id) as events:
        second = next(events)

    assert (first.kind, first.id) == ("skip", "e1.1")
    assert (second.id, json.loads(second.data)["matcher"]["value"]) == ("e1.2", "2")


def test_a_stream_ends_when_it_is_cut_by_either_side(
    server: FakeServer, client: Client
) -> None:
    ends = [server.stream.cut, client.end_streams, server.stop]
    for end in ends:
        with client.stream("/skips/stream", [("topic", "orders")], None) as events:
            next(events)
            threading.Timer(0.05, end).start()

            assert all(event.kind == "ping" for event in events)


def test_a_closed_client_opens_no_endless_stream(
    server: FakeServer, client: Client
) -> None:
    client.close()

    with client.stream("/skips/stream", [("topic", "orders")], None) as events:
        assert list(events) == []


def test_many_threads_share_a_client(server: FakeServer, client: Client) -> None:
    def ask() -> None:
        for _ in range(20):
            client.get("/skips", [("topic", "orders")])

    with ExitStack() as joined:
        for _ in range(8):
            thread = threading.Thread(target=ask)
            thread.start()
            joined.callback(thread.join)

    assert len(server.requests) == 160


PIECES = (
    b"retry: 1000\n\nid: e.1\revent: skip\r\ndata: {\r\ndata:1}\n\n"
    b": hm\n\ndata: x\r\n\r\n"
)
EVENTS = [Event("skip", "{\n1}", "e.1"), Event("message", "x", "e.1")]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1_000])
def test_events_are_the_same_however_the_stream_is_cut_in_pieces(size: int) -> None:
    pieces = [PIECES[at : at + size] for at in range(0, len(PIECES), size)]

    assert list(parse(pieces)) == EVENTS


def test_an_event_needs_no_data() -> None:
    pieces = [b"id: e.1\nevent: ping\n\n: no event\n\nevent: ping\ndata:\n\n"]

    assert list(parse(pieces)) == [Event("ping", "", "e.1")] * 2


def test_an_unfinished_event_is_not_yielded() -> None:
    assert list(parse([b"event: skip\ndata: {}\n"])) == []


def test_an_endless_event_ends_the_stream() -> None:
    def endless() -> Iterator[bytes]:
        while True:
            yield b"data: " + b"x" * 1_000_000

    with pytest.raises(Away):
        list(parse(endless()))


def test_clients_that_return_together_spread_their_tries() -> None:
    waits = [Backoff().next() for _ in range(1_000)]
    patient = Backoff()
    later = [patient.next() for _ in range(1_000)]
    patient.reset()

    assert 0.1 <= min(waits) < 0.15
    assert 0.45 < max(waits) <= 0.5
    assert 0.9 < max(later) <= 1.0
    assert patient.next() <= 0.5
