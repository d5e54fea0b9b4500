"""Wrong passwords and codes: count them in Postgres, delay the next, audit them.

An address, and an account at an address, wait longer after each wrong password (OWASP
ASVS 5.0, 6.3.1). An account as such never waits for a password: any stranger could lock
out its owner. Guesses from many addresses are therefore reported, not stopped. For a
code the account waits, for all addresses: a sender who gets that far has the password.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil
from typing import Any, Literal, Self

from django.contrib.auth import BACKEND_SESSION_KEY
from django.contrib.auth.signals import user_logged_in, user_logged_out
from django.db import connection, transaction
from django.dispatch import receiver
from django.http import HttpRequest

from apps.audit import services as audit
from apps.audit.services import Action
from apps.core import clock
from apps.core.actor import Actor
from apps.core.text_cleaning import storable
from apps.team import sessions
from apps.team.models import SignInFailures, User
from apps.team.sign_in_errors import TooManySignIns
from poisonguard.policy import double_pause

log = logging.getLogger(__name__)

CountedBy = SignInFailures.CountedBy
# Wrong passwords that cost nothing: people mistype, and many may share an address.
FREE = {
    CountedBy.ACCOUNT_AT_ADDRESS: 5,
    CountedBy.ADDRESS: 30,
    CountedBy.CODES_OF_ACCOUNT: 20,
}
LONGEST_DELAY = timedelta(minutes=15)
# The count starts again this long after the last wrong password.
FORGOTTEN_AFTER = timedelta(hours=1)
# At these numbers of wrong passwords for an account, the log and the trail alert.
SUSPICIOUS = frozenset({20, 100, 1_000, 10_000, 100_000})
STRANGER = Actor.system("sign-in")
UNKNOWN = "?"
# How a person signed in: the backend that the session names.
BY_PASSWORD = "apps.team.backends.PasswordBackend"  # noqa: S105 - the name of a class
BY_PROVIDER = "apps.team.backends.ProviderBackend"


@dataclass(frozen=True, kw_only=True, slots=True)
class SignInAttempt:
    """An attempt to sign in: address, account and factor; the account may not exist.

    `page` is the page that asks a person who is signed in already.
    """

    address: str
    account: str
    of: Literal["password", "code"] = "password"
    page: str = ""

    @classmethod
    def of_password(
        cls, request: HttpRequest | None, *, account: str, page: str = ""
    ) -> Self:
        """Describe a try of a password, from the request's address."""
        return cls(address=address_of(request), account=account, page=page)

    @classmethod
    def of_code(cls, request: HttpRequest, *, account: str, page: str = "") -> Self:
        """Describe a try of a code of the second factor."""
        return cls(address=address_of(request), account=account, of="code", page=page)

    @property
    def digests(self) -> Mapping[CountedBy, bytes]:
        """Hash what a failed sign-in is counted by: account, address, and both.

        An attempt of a code is counted by the account's codes as well.
        """
        address, account = self.address.encode(), storable(self.account).encode()
        of_codes = hashlib.sha256(b"code\0" + account).digest()
        return {
            **({CountedBy.CODES_OF_ACCOUNT: of_codes} if self.of == "code" else {}),
            CountedBy.ADDRESS: hashlib.sha256(address).digest(),
            CountedBy.ACCOUNT: hashlib.sha256(account).digest(),
            CountedBy.ACCOUNT_AT_ADDRESS: hashlib.sha256(
                address + b"\0" + account
            ).digest(),
        }


def address_of(request: HttpRequest | None) -> str:
    """Return a request's sender address, from the server or a trusted proxy."""
    return "" if request is None else str(request.META.get("REMOTE_ADDR", ""))[:100]


def check(attempt: SignInAttempt, *, now: datetime) -> None:
    """Raise TooManySignIns if the next sign-in attempt has to wait."""
    digests = attempt.digests
    rows = SignInFailures.objects.filter(digest__in=digests.values())
    ends = [
        row.last_at + delay
        for row in rows
        if digests[CountedBy(row.counted_by)] == bytes(row.digest)
        and now - row.last_at < FORGOTTEN_AFTER
        # Ignore rows without a delay: `last_at` may be of a clock ahead of ours.
        and (delay := _delay_after(CountedBy(row.counted_by), row.number))
    ]
    longest = max(ends, default=now) - now
    if longest > timedelta():
        log.warning("a sign-in from %s has to wait: %s", attempt.address, longest)
        raise TooManySignIns(
            delay=longest,
            message="Too many wrong passwords or codes: try again in"
            f" {ceil(longest.total_seconds())} s.",
        )


def _delay_after(counted_by: CountedBy, number: int) -> timedelta:
    """Return how long to wait after so many failed sign-ins; it doubles."""
    if counted_by not in FREE or number < FREE[counted_by]:
        return timedelta()
    doublings = number - FREE[counted_by]
    longest = LONGEST_DELAY.total_seconds()
    return timedelta(seconds=double_pause(1.0, doublings, cap=longest))


_COUNT = """
INSERT INTO team_sign_in_failures AS known (counted_by, digest, number, last_at)
VALUES (%(counted_by)s, %(digest)s, 1, %(now)s)
ON CONFLICT (counted_by, digest) DO UPDATE SET
    number = CASE WHEN known.last_at < %(forgotten)s THEN 1 ELSE known.number + 1 END,
    last_at = %(now)s
RETURNING number
"""


@transaction.atomic
def note_failure(
    attempt: SignInAttempt, *, account: User | None, now: datetime
) -> None:
    """Count a wrong password or code, and audit it.

    The name of an account that does not exist is left out: it may be a password.
    """
    numbers = {
        counted_by: _count_failure(counted_by, digest, now=now)
        for counted_by, digest in sorted(attempt.digests.items())
    }
    name = UNKNOWN if account is None else account.username
    if attempt.page:
        log.warning("a wrong %s for %s from %s", attempt.of, name, attempt.address)
    else:
        log.warning("a sign-in as %s from %s failed", name, attempt.address)
    guesses = numbers[CountedBy.ACCOUNT]
    is_suspicious = account is not None and guesses in SUSPICIOUS
    if is_suspicious:
        log.error("%d wrong passwords or codes for %s within the hour", guesses, name)
    audit.record(
        action=Action.SIGN_INS_SUSPICIOUS if is_suspicious else Action.SIGN_IN_FAILED,
        subject=f"user:{name}",
        actor=STRANGER,
        now=now,
        detail={
            "address": attempt.address,
            "failures": guesses,
            "of": attempt.of,
            **({"page": attempt.page} if attempt.page else {}),
            **({"disabled": True} if account and not account.is_active else {}),
        },
    )


def _count_failure(counted_by: CountedBy, digest: bytes, *, now: datetime) -> int:
    """Add a failed sign-in to a count in Postgres; return the new number."""
    values: dict[str, Any] = {
        "counted_by": counted_by.value,
        "digest": digest,
        "now": now,
        "forgotten": now - FORGOTTEN_AFTER,
    }
    with connection.cursor() as cursor:
        cursor.execute(_COUNT, values)
        (number,) = cursor.fetchone()
    return int(number)


def forget(attempt: SignInAttempt) -> None:
    """Delete the counts of an account's failed sign-ins from the attempt's address.

    For an attempt of a code, those of the account's codes as well.
    """
    digests = attempt.digests
    kinds = {CountedBy.ACCOUNT_AT_ADDRESS, CountedBy.CODES_OF_ACCOUNT} & digests.keys()
    SignInFailures.objects.filter(digest__in=[digests[kind] for kind in kinds]).delete()


def prune(*, now: datetime) -> int:
    """Delete old counts of failed sign-ins; return the number of rows."""
    old = SignInFailures.objects.filter(last_at__lt=now - FORGOTTEN_AFTER)
    number, _ = old.delete()
    return number


@transaction.atomic
def note_refusal(
    request: HttpRequest, *, account: User | None, why: str, now: datetime
) -> None:
    """Audit the refusal of a person whom the OpenID provider has authenticated."""
    name = UNKNOWN if account is None else account.username
    address = address_of(request)
    log.warning("a sign-in as %s from %s was refused: %s", name, address, why)
    audit.record(
        action=Action.SIGN_IN_FAILED,
        subject=f"user:{name}",
        actor=STRANGER,
        now=now,
        detail={"address": address, "of": "provider", "why": why},
    )


def is_by_provider(request: HttpRequest) -> bool:
    """Tell whether the person of this session came through the OpenID provider."""
    return bool(request.session.get(BACKEND_SESSION_KEY) == BY_PROVIDER)


@receiver(user_logged_in)
def _record_sign_in(request: HttpRequest, user: User, **_: object) -> None:
    """Start the session, audit and log a sign-in; a signal's receiver."""
    # Reset the short expiry of a sign-in that was only begun.
    request.session.set_expiry(None)
    sessions.begin(request.session, address=address_of(request), now=clock.now())
    by = {"by": "provider"} if is_by_provider(request) else {}
    _audit_session(Action.USER_SIGNED_IN, request, user, **by)
    log.info("%s signed in, from %s", user.username, address_of(request))


@receiver(user_logged_out)
def _record_sign_out(request: HttpRequest, user: User | None, **_: object) -> None:
    """Audit the sign-out of a person; a signal's receiver."""
    if user is not None:
        _audit_session(Action.USER_SIGNED_OUT, request, user)


@transaction.atomic
def _audit_session(
    action: Action, request: HttpRequest, user: User, **more: str
) -> None:
    """Append a sign-in or sign-out, with its address, to the audit."""
    audit.record(
        action=action,
        subject=f"user:{user.username}",
        actor=user.principal.actor,
        source="ui",
        now=clock.now(),
        detail={"address": address_of(request), **more},
    )
