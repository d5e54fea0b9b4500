"""The second factor: codes of an app on a person's phone, and recovery codes.

allauth stores them and computes the codes (RFC 6238). The rules are ours: each code is
valid once, wrong ones count like wrong passwords, and every change is audited.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from allauth.mfa.models import Authenticator
from allauth.mfa.recovery_codes.internal.auth import RecoveryCodes
from allauth.mfa.totp.internal.auth import (
    TOTP,
    format_hotp_value,
    generate_totp_secret,
    hotp_value,
)
from django.db import transaction
from django.db.models import QuerySet
from django.utils.crypto import constant_time_compare

from apps.audit import services as audit
from apps.audit.services import Action
from apps.core.actor import Actor
from apps.core.errors import Invalid, Refused
from apps.team import sign_in_attempts
from apps.team.models import User
from apps.team.second_factor_adapter import SealingAdapter
from apps.team.sign_in_attempts import SignInAttempt

FactorType = Authenticator.Type
PERIOD = timedelta(seconds=30)
# How many periods a phone's clock may be off (RFC 6238, 5.2 advises one).
TOLERANCE = 1
# The factor's member that stores the period of the last used code.
LAST_PERIOD = "last_period"


def is_set(user: User) -> bool:
    """Tell whether the user has an app as a second factor."""
    return _factors(user, FactorType.TOTP).exists()


def who_have_one(users: Iterable[User]) -> set[int]:
    """Return the ids of the users who have a second factor."""
    factors = Authenticator.objects.filter(user__in=users, type=FactorType.TOTP)
    return set(factors.values_list("user_id", flat=True))


def sealed_secret() -> str:
    """Create a second factor's secret, sealed for the session until confirmed."""
    return SealingAdapter().encrypt(generate_totp_secret())


def clear_secret(sealed: str) -> str:
    """Decrypt a second factor's secret; raise Unavailable under another key."""
    return SealingAdapter().decrypt(sealed)


def link(user: User, secret: str) -> str:
    """Return a second factor's otpauth URL, as a link or for a QR code."""
    return str(SealingAdapter().build_totp_url(user, secret))


def qr_code(user: User, secret: str) -> str:
    """Draw a second factor's otpauth URL as an SVG of a QR code."""
    return str(SealingAdapter().build_totp_svg(link(user, secret)))


@transaction.atomic
def add(*, user: User, secret: str, code: str, now: datetime) -> list[str]:
    """Add a person's factor, sign them out elsewhere, and return their recovery codes.

    Raises Invalid for a code that is not the secret's, and Refused if the person has a
    factor already.
    """
    _lock_user(user)
    if is_set(user):
        raise Refused("You have a second factor already: remove it first.")
    period = _period_of(code, secret=secret, after=0, now=now)
    if period is None:
        raise Invalid(
            "code", "enter the code that the app shows now; check the phone's clock"
        )
    factor = TOTP.activate(user, secret).instance
    factor.data[LAST_PERIOD] = period
    factor.save(update_fields=["data"])
    codes = _new_recovery_codes(user)
    _end_sessions(user, now=now)
    _audit_factor(Action.SECOND_FACTOR_ADDED, user, now=now)
    return codes


@transaction.atomic
def prove(*, user: User, code: str, attempt: SignInAttempt, now: datetime) -> bool:
    """Use up a person's code of the second factor, if it is right; tell whether it was.

    A wrong one is counted and recorded. Raises TooManySignIns while the attempt has to
    wait. Attempts for a person run one after another: otherwise concurrent guesses
    would all run before one is counted.
    """
    _lock_user(user)
    sign_in_attempts.check(attempt, now=now)
    if _use_app_code(user, code, now=now):
        sign_in_attempts.forget(attempt)
        return True
    if _use_recovery_code(user, code):
        sign_in_attempts.forget(attempt)
        _audit_factor(Action.RECOVERY_CODE_USED, user, now=now)
        return True
    sign_in_attempts.note_failure(attempt, account=user, now=now)
    return False


@transaction.atomic
def renew_recovery_codes(*, user: User, now: datetime) -> list[str]:
    """Replace a person's recovery codes: the former ones are no longer valid."""
    _lock_user(user)
    if not is_set(user):
        raise Refused("You have no second factor: add one first.")
    _factors(user, FactorType.RECOVERY_CODES).delete()
    codes = _new_recovery_codes(user)
    _audit_factor(Action.RECOVERY_CODES_MADE, user, now=now)
    return codes


@transaction.atomic
def remove(*, user: User, now: datetime, actor: Actor | None = None) -> None:
    """Delete a person's second factor and recovery codes, and sign them out.

    The default actor is the person. Raises Refused if there is no factor.
    """
    _lock_user(user)
    if not is_set(user):
        raise Refused(f"{user.username} has no second factor.")
    _factors(user, FactorType.TOTP, FactorType.RECOVERY_CODES).delete()
    _end_sessions(user, now=now)
    _audit_factor(Action.SECOND_FACTOR_REMOVED, user, now=now, actor=actor)


def recovery_codes_left(user: User) -> int:
    """Count the recovery codes that the user has not used."""
    factor = _factors(user, FactorType.RECOVERY_CODES).first()
    return 0 if factor is None else len(RecoveryCodes(factor).get_unused_codes())


def _use_app_code(user: User, code: str, *, now: datetime) -> bool:
    """Use up a right code of the user's app; return False for a wrong or used one."""
    factor = _factors(user, FactorType.TOTP).first()
    if factor is None:
        return False
    secret = SealingAdapter().decrypt(factor.data["secret"])
    after = int(factor.data.get(LAST_PERIOD, 0))
    period = _period_of(code, secret=secret, after=after, now=now)
    if period is None:
        return False
    factor.data[LAST_PERIOD] = period
    factor.last_used_at = now
    factor.save(update_fields=["data", "last_used_at"])
    return True


def _use_recovery_code(user: User, code: str) -> bool:
    """Use up a user's recovery code; return False for a wrong or used one."""
    factor = _factors(user, FactorType.RECOVERY_CODES).first()
    return factor is not None and RecoveryCodes(factor).validate_code(code)


def _period_of(code: str, *, secret: str, after: int, now: datetime) -> int | None:
    """Find the period whose second-factor code this is; None if there is no such.

    It must be near `now`, and later than `after`.
    """
    digits = "".join(code.split())
    current = int(now.timestamp() // PERIOD.total_seconds())
    for period in range(current - TOLERANCE, current + TOLERANCE + 1):
        expected = format_hotp_value(hotp_value(secret, period))
        if period > after and constant_time_compare(digits, expected):
            return period
    return None


def _new_recovery_codes(user: User) -> list[str]:
    """Replace the user's recovery codes; return the new ones."""
    return list(RecoveryCodes.activate(user).generate_codes())


def _factors(user: User, *kinds: str) -> QuerySet[Authenticator]:
    """Select the user's second factors of these kinds: app, recovery codes."""
    factors: QuerySet[Authenticator] = Authenticator.objects.filter(
        user=user, type__in=kinds
    )
    return factors


def _lock_user(user: User) -> None:
    """Lock the user's row until the transaction ends."""
    User.objects.select_for_update().get(pk=user.pk)


def _end_sessions(user: User, *, now: datetime) -> None:
    """End all sessions of a user that began before now: their second factor changed."""
    user.sessions_ended_at = now
    user.save(update_fields=["sessions_ended_at"])


def _audit_factor(
    action: Action, user: User, *, now: datetime, actor: Actor | None = None
) -> None:
    """Append a change of a user's second factor to the audit."""
    own = user.principal.actor
    audit.record(
        action=action,
        subject=f"user:{user.username}",
        actor=actor or own,
        source="system" if actor else "ui",
        now=now,
    )
