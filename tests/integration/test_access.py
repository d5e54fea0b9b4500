"""Access to every URL, by every method, for every kind of caller.

The tables repeat the rights, apart from the code. A URL or a method that is
new, and is in neither of them, fails the test.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any, Final

import pytest
from django.conf import settings
from django.db import transaction
from django.http import SimpleCookie
from django.test import Client
from django.urls import get_resolver
from django.urls.resolvers import URLPattern, URLResolver

from apps.audit.models import Entry
from apps.core import clock
from apps.core.actor import Actor
from apps.team import services as team
from apps.team.rights import Role, Scope
from tests.failure_report_builders import poisons
from tests.integration.api.schema_checking_client import PASSWORD, program
from tests.integration.api.test_authentication import NEEDED, NO_DELIVERY

pytestmark = pytest.mark.django_db

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
ACTOR = Actor.system("test")
# The callers that try the methods that no caller may use.
A_FEW = ("nobody", "viewer", "admin", "a key of capture:write")
# An id that does not exist: admitted callers get 404, and nothing is changed.
ABSENT = "999999999"


class Who(StrEnum):
    """Who is admitted; each but the readers of bodies includes those after it."""

    EVERYBODY = "everybody"
    SIGNED_IN = "signed in"
    BODIES = "reads bodies"
    OPERATORS = "operators"
    ADMINS = "admins"
    SCRAPERS = "admins, and keys with the scope"


PEOPLE: Final[Mapping[str, frozenset[Who]]] = {
    "nobody": frozenset({Who.EVERYBODY}),
    "a key": frozenset({Who.EVERYBODY, Who.SCRAPERS}),
    "viewer": frozenset({Who.EVERYBODY, Who.SIGNED_IN}),
    "reader": frozenset({Who.EVERYBODY, Who.SIGNED_IN, Who.BODIES}),
    "operator": frozenset({Who.EVERYBODY, Who.SIGNED_IN, Who.OPERATORS}),
    "admin": frozenset(set(Who) - {Who.BODIES}),
}
READING: Final = frozenset(
    {
        *(Scope.SKIPS_READ, Scope.POSITIONS_READ, Scope.POISONS_READ),
        *(Scope.PROBLEMS_READ, Scope.OPERATIONS_READ, Scope.BROKERS_READ),
        *(Scope.AUDIT_READ, Scope.REPORTS_READ),
    }
)
ACTING: Final = {Scope.SKIPS_WRITE, Scope.POSITIONS_WRITE, Scope.OPERATIONS_WRITE}
SCOPES: Final[Mapping[str, frozenset[Scope]]] = {
    "viewer": READING,
    "reader": READING | {Scope.BODIES_READ},
    "operator": READING | ACTING,
    "admin": frozenset(set(Scope) - {Scope.BODIES_READ}),
}
PAGES: Final[Mapping[str, Mapping[str, Who]]] = {
    "/healthz": {"GET": Who.EVERYBODY},
    "/readyz": {"GET": Who.EVERYBODY},
    "/metrics": {"GET": Who.SCRAPERS},
    "/": {"GET": Who.SIGNED_IN},
    "/first-steps/dismiss": {"POST": Who.SIGNED_IN},
    "/sign-in": {"GET": Who.EVERYBODY, "POST": Who.EVERYBODY},
    "/sign-in/code": {"GET": Who.EVERYBODY, "POST": Who.EVERYBODY},
    "/sign-in/provider": {"POST": Who.EVERYBODY},
    "/sign-in/provider/callback": {"GET": Who.EVERYBODY},
    "/second-factor": {"GET": Who.SIGNED_IN, "POST": Who.SIGNED_IN},
    "/second-factor/qr.svg": {"GET": Who.SIGNED_IN},
    "/second-factor/recovery-codes": {"POST": Who.SIGNED_IN},
    "/second-factor/remove": {"POST": Who.SIGNED_IN},
    "/sign-out": {"POST": Who.SIGNED_IN},
    "/preferences": {"POST": Who.SIGNED_IN},
    "/problems": {"GET": Who.SIGNED_IN},
    "/problems/N": {"GET": Who.SIGNED_IN},
    "/problems/N/header": {"GET": Who.BODIES, "POST": Who.BODIES},
    "/messages": {"GET": Who.SIGNED_IN},
    "/messages/N": {"GET": Who.SIGNED_IN},
    "/messages/N/reveal": {"GET": Who.BODIES, "POST": Who.BODIES},
    "/messages/N/body": {"POST": Who.BODIES},
    "/skips": {"GET": Who.SIGNED_IN},
    "/skips/new": {"GET": Who.OPERATORS, "POST": Who.OPERATORS},
    "/skips/N": {"GET": Who.SIGNED_IN},
    "/skips/N/remove": {"GET": Who.OPERATORS, "POST": Who.OPERATORS},
    "/brokers": {"GET": Who.SIGNED_IN},
    "/brokers/new": {"GET": Who.ADMINS, "POST": Who.ADMINS},
    "/brokers/allowed": {"GET": Who.ADMINS, "POST": Who.ADMINS},
    "/brokers/N": {"GET": Who.SIGNED_IN},
    "/brokers/N/edit": {"GET": Who.ADMINS, "POST": Who.ADMINS},
    "/brokers/N/test": {"GET": Who.ADMINS, "POST": Who.ADMINS},
    "/brokers/N/remove": {"GET": Who.ADMINS, "POST": Who.ADMINS},
    "/brokers/N/discover": {"GET": Who.SIGNED_IN, "POST": Who.SIGNED_IN},
    "/brokers/N/observe": {"GET": Who.ADMINS, "POST": Who.ADMINS},
    "/topics": {"GET": Who.SIGNED_IN},
    "/topics/N": {"GET": Who.SIGNED_IN},
    "/topics/N/mode": {"GET": Who.ADMINS, "POST": Who.ADMINS},
    "/topics/N/pause": {"GET": Who.ADMINS, "POST": Who.ADMINS},
    "/topics/N/policies": {"GET": Who.ADMINS, "POST": Who.ADMINS},
    "/topics/N/remove": {"GET": Who.ADMINS, "POST": Who.ADMINS},
    "/topics/N/samples": {"GET": Who.SIGNED_IN, "POST": Who.SIGNED_IN},
    "/endpoints": {"GET": Who.SIGNED_IN},
    "/endpoints/new": {"GET": Who.ADMINS, "POST": Who.ADMINS},
    "/endpoints/N": {"GET": Who.SIGNED_IN},
    "/endpoints/N/edit": {"GET": Who.ADMINS, "POST": Who.ADMINS},
    "/endpoints/N/enabled": {"POST": Who.ADMINS},
    "/endpoints/N/remove": {"GET": Who.ADMINS, "POST": Who.ADMINS},
    "/outboxes": {"GET": Who.SIGNED_IN},
    "/outboxes/new": {"GET": Who.ADMINS, "POST": Who.ADMINS},
    "/outboxes/N": {"GET": Who.SIGNED_IN},
    "/outboxes/N/inspect": {"GET": Who.SIGNED_IN},
    "/outboxes/N/edit": {"GET": Who.ADMINS, "POST": Who.ADMINS},
    "/outboxes/N/paused": {"POST": Who.ADMINS},
    "/outboxes/N/remove": {"GET": Who.ADMINS, "POST": Who.ADMINS},
    "/outboxes/N/rows": {"GET": Who.SIGNED_IN},
    "/outboxes/N/rows/N/send": {"GET": Who.OPERATORS, "POST": Who.OPERATORS},
    "/outboxes/N/rows/N/drop": {"GET": Who.OPERATORS, "POST": Who.OPERATORS},
    "/deliveries": {"GET": Who.SIGNED_IN},
    "/deliveries/decide": {"GET": Who.OPERATORS, "POST": Who.OPERATORS},
    f"/deliveries/{NO_DELIVERY}": {"GET": Who.SIGNED_IN},
    f"/deliveries/{NO_DELIVERY}/reveal": {"GET": Who.BODIES, "POST": Who.BODIES},
    f"/deliveries/{NO_DELIVERY}/body": {"POST": Who.BODIES},
    "/operations": {"GET": Who.SIGNED_IN},
    "/operations/preview": {"GET": Who.OPERATORS, "POST": Who.OPERATORS},
    "/operations/confirm": {"GET": Who.OPERATORS, "POST": Who.OPERATORS},
    "/operations/acknowledge": {"POST": Who.OPERATORS},
    "/operations/N": {"GET": Who.SIGNED_IN},
    "/operations/N/items": {"GET": Who.SIGNED_IN},
    "/operations/N/control": {"POST": Who.OPERATORS},
    "/operations/N/acknowledge": {"POST": Who.OPERATORS},
    "/operations/N/rate": {"GET": Who.OPERATORS, "POST": Who.OPERATORS},
    "/operations/N/retry": {"POST": Who.OPERATORS},
    "/operations/N/undo": {"POST": Who.OPERATORS},
    "/operations/N/undo/dismiss": {"POST": Who.OPERATORS},
    "/positions": {"GET": Who.SIGNED_IN},
    "/positions/N": {"GET": Who.SIGNED_IN},
    "/positions/N/move": {"GET": Who.OPERATORS, "POST": Who.OPERATORS},
    "/reports": {"GET": Who.SIGNED_IN},
    "/reports.csv": {"GET": Who.SIGNED_IN},
    "/reports/endpoints": {"GET": Who.SIGNED_IN},
    "/reports/endpoints.csv": {"GET": Who.SIGNED_IN},
    "/reports/runs": {"GET": Who.SIGNED_IN},
    "/reports/run": {"GET": Who.ADMINS, "POST": Who.ADMINS},
    "/audit": {"GET": Who.SIGNED_IN, "POST": Who.SIGNED_IN},
    "/people": {"GET": Who.ADMINS},
    "/people/new": {"GET": Who.ADMINS, "POST": Who.ADMINS},
    "/people/N": {"GET": Who.ADMINS},
    "/people/N/rights": {"GET": Who.ADMINS, "POST": Who.ADMINS},
    "/people/N/active": {"GET": Who.ADMINS, "POST": Who.ADMINS},
    "/people/N/password": {"GET": Who.ADMINS, "POST": Who.ADMINS},
    "/people/N/sessions": {"GET": Who.ADMINS, "POST": Who.ADMINS},
    "/keys": {"GET": Who.ADMINS},
    "/keys/new": {"GET": Who.ADMINS, "POST": Who.ADMINS},
    "/keys/N/revoke": {"GET": Who.ADMINS, "POST": Who.ADMINS},
    "/account": {"GET": Who.SIGNED_IN},
    "/account/password": {"GET": Who.SIGNED_IN, "POST": Who.SIGNED_IN},
    "/account/sessions": {"GET": Who.SIGNED_IN, "POST": Who.SIGNED_IN},
    "/audit.csv": {"GET": Who.SIGNED_IN},
    "/audit.ndjson": {"GET": Who.SIGNED_IN},
    "/help": {"GET": Who.SIGNED_IN},
}


def addresses(resolver: Any = None, before: str = "/") -> Iterator[str]:
    for each in (resolver or get_resolver()).url_patterns:
        path = before + str(each.pattern)
        if isinstance(each, URLResolver):
            yield from addresses(each, path)
        else:
            assert isinstance(each, URLPattern)
            path = re.sub(r"<uuid:\w+>", NO_DELIVERY, path)
            yield re.sub(r"<int:\w+>", "N", path)


def pages() -> list[str]:
    return [path for path in addresses() if not path.startswith("/api/v1/")]


@pytest.fixture
def browsers() -> dict[str, Client]:
    """Return a browser for each of `PEOPLE`; the one with a key sends it to pages."""
    clients = {"nobody": Client(), "a key": Client(headers=program().headers)}
    for name in ("viewer", "reader", "operator", "admin"):
        clients[name] = Client()
        clients[name].force_login(person(name))
    for browser in clients.values():
        browser.raise_request_exception = False
    return clients


def person(name: str) -> Any:
    role = Role.VIEWER if name == "reader" else Role(name)
    return team.create_user(
        username=name,
        password=PASSWORD,
        role=role,
        reads_bodies=name == "reader",
        actor=ACTOR,
        now=clock.now(),
    )


def send(browser: Client, method: str, path: str) -> Any:
    """Send a request and roll it back; reading by session must write no audit entry."""
    cookies = SimpleCookie(browser.cookies.output(header="", sep=";"))
    reads = method in {"GET", "HEAD"} and settings.SESSION_COOKIE_NAME in cookies
    entries = Entry.objects.count() if reads else 0
    with transaction.atomic():
        response: Any = browser.generic(method, path.replace("N", ABSENT))
        if response.streaming:
            b"".join(response)
        if reads:
            assert Entry.objects.count() == entries, f"{method} {path}"
        transaction.set_rollback(True)
    browser.cookies = cookies
    return response


def is_stopped(response: Any) -> bool:
    asks_to_sign_in = response.get("Location", "").startswith("/sign-in?next=")
    return asks_to_sign_in or response.status_code in {401, 403}


def does_nothing(response: Any) -> bool:
    """Tell whether a method is refused; the sign-in redirects signed-in people."""
    return bool(response.status_code == 405 or response.get("Location") == "/")


def test_the_access_table_has_every_page() -> None:
    assert sorted(PAGES) == sorted(pages())


@pytest.mark.parametrize("method", METHODS)
def test_each_page_admits_exactly_the_people_in_the_table(
    method: str, browsers: Mapping[str, Client]
) -> None:
    wrong = []
    for path, allowed in PAGES.items():
        who = allowed.get("GET" if method == "HEAD" else method)
        for name, browser in browsers.items():
            if who is None and name not in A_FEW:
                continue
            response = send(browser, method, path)
            if not is_answered_by(who, name, response):
                wrong.append(f"{method} {path} by {name}: {response.status_code}")

    assert not wrong, "\n".join(wrong)


def is_answered_by(who: Who | None, name: str, response: Any) -> bool:
    """Tell whether one of `PEOPLE` is answered as a page that admits `who` answers."""
    if response.status_code >= 500:
        return False
    if who is None:
        return is_stopped(response) or does_nothing(response)
    gets_in = who in PEOPLE[name]
    return gets_in is not is_stopped(response) and response.status_code != 405


def test_a_form_without_its_token_does_nothing() -> None:
    browser = Client(enforce_csrf_checks=True)
    browser.force_login(person("admin"))
    forms = [path for path, allowed in PAGES.items() if "POST" in allowed]

    statuses = {path: send(browser, "POST", path).status_code for path in forms}

    assert statuses == dict.fromkeys(forms, 403)


def test_a_get_never_shows_a_chosen_header(
    browsers: Mapping[str, Client],
) -> None:
    (poison,) = poisons(clock.now(), 1, headers=[("tenant", b"acme")])
    page = f"/problems/{poison.problem_id}"

    for name in ("viewer", "reader", "operator", "admin"):
        for path in (f"{page}?header=tenant", f"{page}/header?header=tenant"):
            for method in ("GET", "HEAD"):
                response = send(browsers[name], method, path)
                assert is_stopped(response) or response.status_code in {200, 302}
                assert b"acme" not in response.content


def api() -> list[str]:
    return sorted({path for _, _, path in (each.partition(" ") for each in NEEDED)})


def callers() -> Iterator[tuple[str, Client, frozenset[Scope]]]:
    """Yield every caller of the API, with its scopes according to the tables."""
    for scope in Scope:
        key = program(scope)
        yield f"a key of {scope}", Client(headers=key.headers), frozenset({scope})
    for name, scopes in SCOPES.items():
        browser = Client()
        browser.force_login(person(name))
        yield name, browser, scopes


@pytest.mark.parametrize("method", METHODS)
def test_each_api_call_admits_exactly_the_keys_with_its_scope(method: str) -> None:
    others = Client(), Client(headers={"Authorization": "Bearer pw_local_wrong"})
    all_callers = list(callers())
    wrong = []
    for path in api():
        needed = NEEDED.get(f"{'GET' if method == 'HEAD' else method} {path}")
        if (method, path) == ("HEAD", "skips/stream"):
            needed = None  # it has no end, so it is not begun for its head
        address = re.sub(r"\b1\b", "N", f"/api/v1/{path}")
        statuses = [send(other, method, address).status_code for other in others]
        if statuses != [401, 401]:
            wrong.append(f"{method} {path} by others: {statuses}")
        for name, browser, scopes in all_callers:
            if needed is None and name not in A_FEW:
                continue
            status = send(browser, method, address).status_code
            is_closed = by_post_only(method, path) and name in SCOPES
            having = frozenset[Scope]() if is_closed else scopes
            if not is_expected(status, needed, having, path):
                wrong.append(f"{method} {path} by {name}: {status}")

    assert not wrong, "\n".join(wrong)


def is_expected(
    status: int, needed: Scope | None, scopes: frozenset[Scope], path: str
) -> bool:
    """Tell whether a call that needs a scope answers so to who has these."""
    if status >= 500 and not path.endswith("stream"):
        return False
    if needed is None:
        return status == 405
    return (status != 403) is (needed in scopes) and status not in {401, 405}


def by_post_only(method: str, path: str) -> bool:
    """Tell the calls that a session may not GET: a link sends the session too."""
    acts = path.endswith(("/body", "/discover"))
    return acts and method in {"GET", "HEAD"}
