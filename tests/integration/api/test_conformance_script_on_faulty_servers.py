"""The conformance script passes the real server, and finds the fault of others."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

import pytest

from apps.poison.models import Skip
from apps.team.rights import Scope
from poisonguard_conformance import check_server_command, server_skip_checks
from poisonguard_conformance.check_server_command import main
from tests.acceptance.web_server_process import Web, api_key
from tests.faulty_poisonweb_server_proxy import (
    NOTHING,
    ClientRequest,
    Mistake,
    ServerAnswer,
    erring,
)

pytestmark = pytest.mark.django_db(transaction=True)

SCOPES = (
    *(Scope.CAPTURE_WRITE, Scope.POISONS_READ, Scope.BODIES_READ),
    *(Scope.SKIPS_READ, Scope.SKIPS_WRITE, Scope.POSITIONS_READ, Scope.POSITIONS_WRITE),
)
# Long timeouts, so that a busy machine does not fail the checks.
PATIENT = ("--patience", "10", "--timeout", "30")

Json = dict[str, Any]


@pytest.fixture(scope="module")
def web(django_db_setup: None) -> Iterator[Web]:
    web = Web()
    web.start()
    yield web
    web.stop(signal.SIGTERM)


@dataclass(frozen=True, kw_only=True)
class Report:
    """The exit status of the script, the result of each check, and what it left."""

    status: int
    results: Mapping[str, str]
    details: Mapping[str, str]
    left_behind: str


@pytest.fixture
def judge(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Report]:
    """Give a function that runs the script with a url, a key and more arguments."""
    key_file = tmp_path / "key"

    def judge(url: str, key: str, *arguments: str) -> Report:
        key_file.write_text(f"{key}\n")
        options = ("--url", url, "--api-key-file", str(key_file), "--json")
        status = main([*options, *PATIENT, *arguments])
        output = json.loads(capsys.readouterr().out)
        return Report(
            status=status,
            results={each["name"]: each["result"] for each in output["checks"]},
            details={each["name"]: each["detail"] for each in output["checks"]},
            left_behind=output["left_behind"],
        )

    return judge


def test_the_server_passes_twice_with_what_the_first_run_left_behind(
    web: Web, judge: Callable[..., Report]
) -> None:
    key = api_key(*SCOPES)
    # Without stream-pings, which takes 15 seconds and leaves nothing behind.
    names = [name for name in check_server_command.NAMES if name != "stream-pings"]

    first, again = judge(web.url, key), judge(web.url, key, "--only", *names)

    assert dict(first.details) == dict.fromkeys(check_server_command.NAMES, "")
    assert dict(again.details) == dict.fromkeys(names, "")
    assert (first.status, again.status) == (0, 0)
    assert "could not be removed" not in again.left_behind
    assert not Skip.objects.active().exists()


def test_checks_beyond_the_scopes_of_the_key_are_not_checked(
    web: Web, judge: Callable[..., Report]
) -> None:
    key = api_key(Scope.CAPTURE_WRITE)
    names = ("failure-once", "body", "skip-matchers", "position-open")

    report = judge(web.url, key, "--only", *names)
    allowed = judge(web.url, key, "--allow-unchecked", "--only", *names)

    assert list(report.results.values()) == ["ok", *["not checked"] * 3]
    assert "poisons:read" in report.details["body"]
    assert (report.status, allowed.status) == (2, 0)


def test_a_key_without_the_topic_gets_the_name_of_the_missing_topic(
    web: Web, judge: Callable[..., Report]
) -> None:
    key = api_key(*SCOPES, topics=("orders",))
    names = (
        "failure-once",
        "counter-once",
        "confirmation-forged",
        "position-any-order",
    )

    report = judge(web.url, key, "--only", *names)
    elsewhere = judge(web.url, key, "--topic-prefix", "or", "--only", *names[:1])

    assert set(report.results.values()) == {"not checked"}
    assert all("conformance-orders" in detail for detail in report.details.values())
    assert (report.status, elsewhere.status) == (2, 2)


# The mistakes of the faulty servers


def answers(path: str, change: Callable[[Json], None]) -> Mistake:
    """Change the answers to calls of this path that are objects."""

    def answered(answer: ServerAnswer) -> None:
        if answer.request.concerns(path) and answer.body.startswith(b"{"):
            data = answer.json
            change(data)
            answer.body = json.dumps(data).encode()

    return Mistake(answered=answered)


def statuses(path: str, **others: str) -> Mistake:
    """Replace each named status of a result by another."""

    def change(data: Json) -> None:
        for result in [*data.get("results", []), *data.get("guards", [])]:
            result["status"] = others.get(result["status"], result["status"])

    return answers(path, change)


def without_result_members(path: str, name: str) -> Mistake:
    def change(data: Json) -> None:
        for result in data.get("results", []):
            result.pop(name, None)

    return answers(path, change)


def reversed_results(data: Json) -> None:
    data.get("results", []).reverse()


def in_order_of_names(data: Json) -> None:
    data["header_names"] = sorted(set(data["header_names"]))


def without_odd_characters(data: Json) -> None:
    for skip in data.get("skips", []):
        value = skip["matcher"]["value"]
        if isinstance(value, str):
            skip["matcher"]["value"] = value.replace("\0", "")


def never_expiring(data: Json) -> None:
    for skip in data.get("skips", []):
        skip["expires_at"] = None


def first_epoch(data: Json) -> None:
    data["epoch"] = 1


def resuming_at_what_is_processed(data: Json) -> None:
    for mark in data["positions"]:
        mark["resume"] = mark["processed"]


def numbered(path: str, status: int, instead: int) -> Mistake:
    def answered(answer: ServerAnswer) -> None:
        if answer.request.concerns(path) and answer.status == status:
            answer.status = instead

    return Mistake(answered=answered)


def longer_bodies(answer: ServerAnswer) -> None:
    if answer.request.path.endswith("/body"):
        answer.body += b"\n"


def plain_problems(answer: ServerAnswer) -> None:
    answer.headers["Content-Type"] = "application/json"


def without_a_word_on_keys(answer: ServerAnswer) -> None:
    answer.headers = {
        name: value
        for name, value in answer.headers.items()
        if name.lower() != "www-authenticate"
    }


def strict(answer: ServerAnswer) -> None:
    if "conformance" in json.loads(answer.request.body)["failures"][0]:
        answer.status = 422


def without_header(name: str) -> Mistake:
    def change_request(request: ClientRequest) -> None:
        request.headers = {
            other: value
            for other, value in request.headers.items()
            if other.lower() != name
        }

    return Mistake(on_request=change_request)


def without_query(name: str, *, keep: int = 0) -> Mistake:
    """Drop the query parameters of this name, except the first few."""

    def change_request(request: ClientRequest) -> None:
        path, _, query = request.path.partition("?")
        pairs = parse_qsl(query)
        places = [place for place, pair in enumerate(pairs) if pair[0] == name][keep:]
        others = [pair for place, pair in enumerate(pairs) if place not in places]
        if request.concerns("/skips/stream"):
            request.path = f"{path}?{urlencode(others)}"

    return Mistake(on_request=change_request)


def forgetful(request: ClientRequest) -> None:
    without_header("last-event-id").on_request(request)
    without_query("after").on_request(request)


def asking(path: str, name: str, change: Callable[[Json], None]) -> Mistake:
    """Change each member of the list that is posted to this path."""

    def change_request(request: ClientRequest) -> None:
        if request.method == "POST" and request.concerns(path):
            whole = json.loads(request.body)
            for member in whole[name]:
                change(member)
            request.body = json.dumps(whole).encode()

    return Mistake(on_request=change_request)


def without_member(path: str, name: str, member: str) -> Mistake:
    return asking(path, name, lambda each: each.pop(member, None))


def first_run_only(update: Json) -> None:
    update["settled"] = update["settled"][:1]


def one_publisher(update: Json) -> None:
    update["publisher"] = ""


def without_events(kind: str) -> Mistake:
    return Mistake(
        event=lambda text: None if f"event: {kind}" in text.splitlines() else text
    )


MISTAKES: dict[str, Mistake] = {
    "failure-once": statuses("/failures", duplicate="created"),
    "failure-once-in-a-batch": answers("/failures", reversed_results),
    "failure-rejected": without_result_members("/failures", "pointer"),
    "unknown-members": Mistake(answered=strict),
    "body": Mistake(answered=longer_bodies),
    "hostile-message": answers("/poisons/", in_order_of_names),
    "confirmation-forged": statuses("/confirmations", rejected="confirmed"),
    "counter-once": statuses("/counters", duplicate="counted"),
    "counter-rejected": without_result_members("/counters", "pointer"),
    "guard-newest": statuses("/counters", duplicate="updated"),
    "gzip": without_header("content-encoding"),
    "idempotency-key": without_header("idempotency-key"),
    "no-json": Mistake(answered=plain_problems),
    "too-many": numbered("/failures", 413, 400),
    "wrong-key": Mistake(answered=without_a_word_on_keys),
    "skip-told-at-once": without_events("unskip"),
    "skip-matchers": answers("/skips", without_odd_characters),
    "skip-refused": numbered("/skips", 422, 400),
    "skip-groups": without_query("consumer_group"),
    "skip-expires": answers("/skips", never_expiring),
    "skip-applied": statuses("/skips/applied", rejected="ok"),
    "skip-of-a-report": without_events("skip"),
    "suspected-is-not-shared": without_member("/failures", "failures", "suspected"),
    "stream-resumes": Mistake(on_request=forgetful),
    "stream-of-several-topics": without_query("topic", keep=1),
    "stream-resets": without_events("reset"),
    "stream-pings": without_events("ping"),
    "position-open": answers("/positions/open", first_epoch),
    "position-any-order": asking("/positions/settle", "updates", first_run_only),
    "position-persisted": answers("/positions/open", resuming_at_what_is_processed),
    "position-publishers": asking("/positions/settle", "updates", one_publisher),
    "position-fenced": statuses("/positions/settle", fenced="ok"),
    "position-fence-told": without_events("fence"),
    "position-rejected": without_result_members("/positions/settle", "pointer"),
    "position-unopened": statuses("/positions/settle", rejected="ok"),
    "position-pressure": without_result_members("/positions/settle", "pressure"),
}


def test_each_check_has_a_mistake_that_it_finds() -> None:
    assert list(MISTAKES) == list(check_server_command.NAMES)


@pytest.mark.parametrize("name", MISTAKES)
def test_each_check_fails_for_its_own_mistakes_only(
    web: Web,
    judge: Callable[..., Report],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    monkeypatch.setattr(
        server_skip_checks, "PINGS", server_skip_checks.PINGS[:1]
    )  # the other takes 15 s
    key = api_key(*SCOPES)

    with erring(web.url, NOTHING) as url:
        well = judge(url, key, "--only", name)
    with erring(web.url, MISTAKES[name]) as url:
        ill = judge(url, key, "--patience", "1", "--only", name)

    assert (well.status, dict(well.details)) == (0, {name: ""})
    assert (ill.status, dict(ill.results)) == (1, {name: "failed"})
    assert not Skip.objects.active().exists()
