"""A person drops a million messages in the browser, and undoes it, while others work.

A colleague browses and decides single messages, and a script decides small selections
of the same messages. Whatever anybody asks meanwhile gets an answer.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import re
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import urlencode

import psycopg
import pytest
from playwright.sync_api import Page, Response, expect

from apps.core.advisory_locks import key_of
from apps.triage.models import lock_name
from poisonweb.embedded import running_servers_file
from tests.acceptance.product_process import PYTHON, Product, environment
from tests.browser.conftest import Open
from tests.browser.test_triage import number_at, preview
from tests.many_messages_by_sql import insert_messages
from tests.waiting import wait_until

pytestmark = pytest.mark.browser

SOAK = "SOAK" in os.environ
# More than are previewed or judged within a request, or by a worker at once.
MESSAGES = 1_200_000 if SOAK else 24_000
PROBLEMS = 8
TOPIC = "invoices"
OPEN = f"is:open topic:{TOPIC}"
PATIENCE = 1_800 if SOAK else 60  # seconds
SCOPES = (
    *("poisons:read", "problems:read", "operations:read", "operations:write"),
    *("brokers:read", "brokers:write", "metrics:read"),
)
COOKIE = "a" * 32
PASSWORD = "correct horse battery"
# A colleague reads a page before going on.
PAUSE = 0.2
SERVER_FAULT = 500

STATES = f"""
SELECT problem_id, state, count(*) FROM poison_poison
JOIN brokers_topic topic ON topic.id = topic_id WHERE topic.name = '{TOPIC}'
GROUP BY 1, 2
"""
CHECK = """
from apps.core import clock
from apps.poison.services import counts
print([str(wrong) for wrong in counts.check(now=clock.now())])
"""
REMOVE = f"""
CREATE TEMPORARY TABLE gone AS SELECT poison.id FROM poison_poison poison
JOIN brokers_topic topic ON topic.id = topic_id WHERE topic.name = '{TOPIC}';
CREATE TEMPORARY TABLE over AS SELECT DISTINCT operation_id AS id
FROM triage_selected_item WHERE poison_id IN (SELECT id FROM gone);
DELETE FROM triage_skipped_item WHERE operation_id IN (SELECT id FROM over);
DELETE FROM triage_selected_item WHERE operation_id IN (SELECT id FROM over);
DELETE FROM poison_redrive WHERE poison_id IN (SELECT id FROM gone);
DELETE FROM poison_failure WHERE poison_id IN (SELECT id FROM gone);
DELETE FROM poison_body WHERE poison_id IN (SELECT id FROM gone);
DELETE FROM poison_poison WHERE id IN (SELECT id FROM gone);
DELETE FROM poison_problem USING brokers_topic topic
WHERE topic.id = topic_id AND topic.name = '{TOPIC}';
"""


@dataclass(kw_only=True)
class Answers:
    """What everybody was answered, and how long the slowest answer took."""

    statuses: Counter[int] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    slowest: tuple[float, str] = (0.0, "")

    def add(self, status: int, request: str, *, seconds: float = 0.0) -> None:
        self.statuses[status] += 1
        self.slowest = max(self.slowest, (seconds, request))
        if status >= SERVER_FAULT:
            self.faults.append(f"{request}: {status} after {seconds:.1f} s")


@dataclass(frozen=True, kw_only=True)
class Visitor:
    """Asks the product for pages or calls, with a session or a key."""

    port: int
    headers: Mapping[str, str]
    answers: Answers

    def ask(
        self, path: str, body: str | None = None, **more: str
    ) -> tuple[http.client.HTTPResponse, str]:
        method = "GET" if body is None else "POST"
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        began = time.monotonic()
        try:
            connection.request(method, path, body, {**self.headers, **more})
            answer = connection.getresponse()
            text = answer.read().decode()
        finally:
            connection.close()
        seconds = time.monotonic() - began
        self.answers.add(answer.status, f"{method} {path}", seconds=seconds)
        return answer, text


class Colleague(Visitor):
    """Goes from page to page, and decides a message now and then."""

    def submit(self, path: str, form: Mapping[str, str]) -> str:
        """Submit a form; return where it leads, or "" if it was refused."""
        answer, _ = self.ask(
            path,
            urlencode({"csrfmiddlewaretoken": COOKIE, **form}),
            **{"Content-Type": "application/x-www-form-urlencoded"},
        )
        return answer.getheader("Location") or ""

    def look_around(self, problem: int) -> None:
        for page in ("/", "/problems", f"/problems/{problem}", "/topics"):
            self.ask(page)
        self.ask(f"/messages?{urlencode({'q': OPEN})}")
        _, operations = self.ask("/operations")
        for number in re.findall(r'href="/operations/(\d+)"', operations)[:3]:
            self.ask(f"/operations/{number}")
            self.ask(f"/operations/{number}/items?standing=dropped")

    def drop_one(self) -> int | None:
        """Drop one of the messages in the list; return the operation, if one began."""
        _, listed = self.ask(f"/messages?{urlencode({'q': OPEN})}")
        messages = re.findall(r'data-key="(\d+)"', listed)
        if not messages:
            return None
        choice = {"verb": "drop", "ids": random.choice(messages)}
        to_preview = self.submit("/operations/preview", choice)
        self.ask(to_preview)
        (token,) = re.findall(r"token=([0-9a-f-]+)", to_preview)
        decision = {"token": token, "act": "confirm", "reason": "by a colleague"}
        return number_in(self.submit("/operations/confirm", decision))


class ApiScript(Visitor):
    """Decides small selections of open messages by the API."""

    def get(self, path: str, **query: str) -> Any:
        _, text = self.ask(f"/api/v1/{path}?{urlencode(query)}")
        return json.loads(text)

    def post(self, path: str, body: object) -> Any:
        json_type = {"Content-Type": "application/json"}
        _, text = self.ask(f"/api/v1/{path}", json.dumps(body), **json_type)
        return json.loads(text)

    def decide(self, verb: str, **selection: object) -> int | None:
        """Preview and confirm at once; return the operation, if one began."""
        answer = self.post("operations/preview", {"verb": verb, **selection})
        if "token" not in answer:
            return None
        decision = {"token": answer["token"], "reason": "by a script"}
        begun = self.post("operations", decision)
        return int(begun["id"]) if "id" in begun else None

    def open_messages(self, number: int) -> list[int]:
        """List the newest; none where Postgres takes too long to find them."""
        listed = self.get("poisons", q=OPEN, limit=str(number)).get("results", [])
        return [message["id"] for message in listed]


def number_in(address: str) -> int | None:
    match = re.fullmatch(r"/operations/(\d+)", address)
    return int(match[1]) if match else None


@dataclass(kw_only=True)
class Decisions:
    """The operations of the others."""

    drops: list[int] = field(default_factory=list)
    redrives: list[int] = field(default_factory=list)


@dataclass(kw_only=True)
class Others:
    """A colleague and a script, who work until they are asked to end."""

    colleague: Colleague
    script: ApiScript
    problems: list[int]
    decisions: Decisions = field(default_factory=Decisions)

    def __post_init__(self) -> None:
        self._end = threading.Event()

    def have_decided(self) -> bool:
        """Tell whether they have begun operations of both kinds."""
        return bool(self.decisions.drops and self.decisions.redrives)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        with ThreadPoolExecutor(2) as threads:
            work = [
                threads.submit(self._repeat, self._of_colleague),
                threads.submit(self._repeat, self._of_script),
            ]
            try:
                yield
            finally:
                self._end.set()
        for each in work:
            each.result()

    def _repeat(self, round_of: Callable[[], None]) -> None:
        while not self._end.wait(PAUSE):
            round_of()

    def _of_colleague(self) -> None:
        self.colleague.look_around(random.choice(self.problems))
        if dropped := self.colleague.drop_one():
            self.decisions.drops.append(dropped)

    def _of_script(self) -> None:
        script, decisions = self.script, self.decisions
        for page in ("problems", "operations", "topics"):
            script.get(page)
        script.ask("/metrics")
        if not (messages := script.open_messages(100)):
            return
        some = random.sample(messages, min(len(messages), 10))
        if random.random() < 0.5:
            operation, kind = script.decide("drop", ids=some), decisions.drops
        else:
            operation, kind = script.decide("redrive", ids=some), decisions.redrives
        if operation is not None:
            kind.append(operation)

    def undo_drops(self) -> None:
        """Undo what they dropped, and wait for all that they began.

        Of some drops nothing was left: the large one had come first.
        """
        undone = [
            self.script.post(f"operations/{number}/undo", {})["id"]
            for number in self.decisions.drops
            if self.counts(number)["dropped"]
        ]
        for number in (*undone, *self.decisions.redrives):
            wait_until(partial(self.is_done, number), seconds=PATIENCE)

    def is_done(self, operation: int) -> bool:
        answer = self.script.get(f"operations/{operation}")
        return bool(answer["state"] == "done")

    def counts(self, operation: int) -> dict[str, int]:
        answer: dict[str, int] = self.script.get(f"operations/{operation}")["counts"]
        return answer

    def number_of_sends(self) -> int:
        return sum(self.counts(each)["sent"] for each in self.decisions.redrives)


@pytest.fixture
def database(product: Product) -> Iterator[psycopg.Connection[Any]]:
    addresses = running_servers_file.environment(product.var)
    with psycopg.connect(addresses["DATABASE_URL"], autocommit=True) as session:
        yield session


def manage(product: Product, *arguments: str, stdin: str = "") -> str:
    return subprocess.run(
        (PYTHON, "manage.py", *arguments),
        cwd=product.tree,
        env=environment(),
        input=stdin,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout.strip()


def script_of(product: Product, answers: Answers) -> ApiScript:
    scopes = [word for scope in SCOPES for word in ("--scope", scope)]
    key = manage(product, "create_api_key", "large operations", *scopes)
    headers = {"Authorization": f"Bearer {key}"}
    return ApiScript(port=product.port, headers=headers, answers=answers)


def colleague_of(product: Product, answers: Answers) -> Colleague:
    manage(product, "create_user", "colleague", stdin=f"{PASSWORD}\n")
    cookie = {"Cookie": f"pw_csrf={COOKIE}"}
    stranger = Colleague(port=product.port, headers=cookie, answers=answers)
    form = {"csrfmiddlewaretoken": COOKIE, "username": "colleague"}
    answer, _ = stranger.ask(
        "/sign-in",
        urlencode({**form, "password": PASSWORD}),
        **{"Content-Type": "application/x-www-form-urlencoded"},
    )
    cookies = " ".join(answer.headers.get_all("Set-Cookie") or [])
    (session,) = re.findall(r"pw_session=(\w+)", cookies)
    headers = {"Cookie": f"pw_csrf={COOKIE}; pw_session={session}"}
    return Colleague(port=product.port, headers=headers, answers=answers)


@pytest.fixture
def others(product: Product, database: psycopg.Connection[Any]) -> Iterator[Others]:
    """Insert the messages, and give two who may decide them."""
    answers = Answers()
    script = script_of(product, answers)
    sample = next(each["name"] for each in script.get("brokers")["results"])
    script.post("topics", {"name": TOPIC, "broker": sample})
    insert_messages(database, topic=TOPIC, number=MESSAGES, problems=PROBLEMS)
    problems = sorted({problem for problem, *_ in database.execute(STATES)})
    yield Others(
        colleague=colleague_of(product, answers), script=script, problems=problems
    )
    database.execute(REMOVE)


def standing(page: Page) -> tuple[int, int]:
    """Read how many messages are done, of how many."""
    text = page.locator("#standing").inner_text()
    done, total = re.findall(r"([\d,]+) of ([\d,]+)", text)[0]
    return int(done.replace(",", "")), int(total.replace(",", ""))


@contextmanager
def worker_kept_from(database: psycopg.Connection[Any], page: Page) -> Iterator[None]:
    """Keep a worker from beginning the operation of the preview that a page shows."""
    (token,) = re.findall(r"token=([0-9a-f-]+)", page.url)
    query = "SELECT id FROM triage_operation WHERE token = %s"
    ((number,),) = database.execute(query, [token]).fetchall()
    lock = [key_of(lock_name(number))]
    database.execute("SELECT pg_advisory_lock(%s)", lock)
    try:
        yield
    finally:
        database.execute("SELECT pg_advisory_unlock(%s)", lock)


def drop_all(page: Page) -> int:
    """Confirm the drop that a page previews; return how many messages it is of."""
    expect(page.get_by_label("Reason")).to_be_visible(timeout=1_000 * PATIENCE)
    heading = page.get_by_role("heading", name=re.compile(r"^Drop [\d,]+ messages\?$"))
    number = re.sub(r"\D", "", heading.inner_text())
    page.get_by_label("Reason").fill("a million at once")
    page.get_by_label(re.compile(r"^Type \d+ to confirm")).fill(number)
    page.get_by_role("button", name=re.compile(r"^Drop [\d,]+ messages$")).click()
    page.wait_for_url(re.compile(r"/operations/\d+$"))
    return int(number)


def counted(page: Page, label: str) -> int:
    """Read one of the counts on the page of an operation."""
    return number_at(page.locator(".counts div", has_text=label).locator("dd"))


def press(page: Page, button: str, *, then: str) -> None:
    """Press a button of the operation's control, and wait for the one that follows."""
    page.get_by_role("button", name=button, exact=True).click()
    expect(page.get_by_role("button", name=then, exact=True)).to_be_visible()


def await_end(page: Page) -> None:
    finished = page.get_by_text("Finished", exact=True)
    expect(finished).to_be_visible(timeout=1_000 * PATIENCE)


def pause_and_resume(page: Page) -> None:
    """Pause the operation on a page, see that nothing goes on, and resume it."""
    press(page, "Pause", then="Resume")
    # What was begun when it was paused is over within a second and one claim.
    page.wait_for_timeout(2_000)
    page.reload()
    paused_at = standing(page)
    page.wait_for_timeout(2_000)
    page.reload()
    assert standing(page) == paused_at
    assert paused_at[0] < paused_at[1]
    press(page, "Resume", then="Pause")


def shown_by_problem(page: Page, problems: list[int]) -> dict[int, int]:
    """Read the open messages of each problem on its page."""
    numbers: dict[int, int] = {}
    for problem in problems:
        page.goto(f"/problems/{problem}")
        numbers[problem] = number_at(page.locator("#acts-now button").first)
    return numbers


def shown_on_overview(page: Page, problems: list[int]) -> dict[int, int]:
    """Read the open messages of those problems that the Overview shows."""
    page.goto("/")
    numbers: dict[int, int] = {}
    for problem in problems:
        row = page.locator(f"#needs-{problem} td.num.strong")
        if row.count():
            numbers[problem] = number_at(row)
    return numbers


@dataclass(frozen=True, kw_only=True)
class LargeDropResult:
    """What the large drop and its undo did, as their pages count it."""

    selected: int  # to be dropped, when it was confirmed
    dropped: int
    skipped: int
    restored: int


def drop_and_undo(page: Page, database: psycopg.Connection[Any]) -> LargeDropResult:
    """Drop all open messages, with a pause, and undo that; all in the browser."""
    page.goto(f"/messages?{urlencode({'q': OPEN})}")
    page.get_by_label("Select this page").check()
    page.get_by_role("link", name=re.compile("^Select all")).click()
    preview(page, "Drop…")
    if SOAK:
        selected = drop_all(page)
        wait_until(lambda: standing_now(page) > selected / 5, seconds=PATIENCE)
        pause_and_resume(page)
    else:
        # So few would all be dropped before anybody can pause.
        with worker_kept_from(database, page):
            selected = drop_all(page)
            pause_and_resume(page)
    await_end(page)
    dropped, skipped = counted(page, "Dropped"), counted(page, "Skipped")
    page.get_by_role("button", name=re.compile("^Undo")).click()
    page.wait_for_url(re.compile(r"/operations/\d+$"))
    await_end(page)
    return LargeDropResult(
        selected=selected,
        dropped=dropped,
        skipped=skipped,
        restored=counted(page, "Restored"),
    )


def standing_now(page: Page) -> int:
    page.reload()
    return standing(page)[0]


def require_equal_counts(
    page: Page, database: psycopg.Connection[Any], problems: list[int]
) -> None:
    """Compare the open messages on pages with a count of them all."""
    of_each = {
        problem: number
        for problem, state, number in database.execute(STATES)
        if state == "open"
    }
    assert shown_by_problem(page, problems) == of_each
    on_overview = shown_on_overview(page, problems)
    assert on_overview
    assert on_overview.items() <= of_each.items()


def test_all_is_open_again_after_a_large_drop_beside_others_and_its_undo(
    open_page: Open,
    product: Product,
    database: psycopg.Connection[Any],
    others: Others,
) -> None:
    answers = others.script.answers
    page = open_page("/help")

    def note(answer: Response) -> None:
        answers.add(answer.status, f"{answer.request.method} {answer.url}")

    page.on("response", note)
    with others.at_work():
        # Once all is dropped, they find nothing to decide.
        wait_until(others.have_decided, seconds=PATIENCE)
        result = drop_and_undo(page, database)
    others.undo_drops()

    assert answers.faults == []
    assert others.decisions.drops
    assert others.decisions.redrives
    # The preview has skipped those that others had just sent.
    assert result.dropped <= result.selected <= result.dropped + result.skipped
    assert result.restored == result.dropped
    redriven = others.number_of_sends()
    states = Counter[str]()
    for _, state, number in database.execute(STATES):
        states[state] += number
    assert states == {"open": MESSAGES - redriven, "redriven": redriven}
    require_equal_counts(page, database, others.problems)
    assert manage(product, "shell", "--no-imports", "-c", CHECK) == "[]"
