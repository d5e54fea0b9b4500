"""The forms of people, API keys and one's own account."""

from __future__ import annotations

import re
from datetime import UTC, datetime, time, timedelta
from typing import Any

from django import forms
from django.http import QueryDict

from apps.core.actor import Actor
from apps.core.errors import Invalid, PoisonwebError
from apps.dashboard.forms.fields import require_valid
from apps.team import services
from apps.team.models import User
from apps.team.rights import Role, Scope
from apps.team.services import (
    MOST_PATTERNS,
    NAME_LIMIT,
    PATTERN_LIMIT,
    USERNAME_LIMIT,
    NewKey,
)

PASSWORD_LIMIT = 1_000
USUAL_LIFE = timedelta(days=90)
ROLES = {
    Role.VIEWER: "sees everything but bodies and header values",
    Role.OPERATOR: "as a viewer; requeues, drops, restores, skips, moves positions",
    Role.ADMIN: "as an operator; sets up brokers and lanes, manages people and keys",
}
SCOPES = {
    Scope.CAPTURE_WRITE: "report failures, confirmations and counts, as a consumer",
    Scope.SKIPS_READ: "read skip lists and follow their changes, as a consumer",
    Scope.SKIPS_WRITE: "add and remove skips",
    Scope.POSITIONS_READ: "read positions",
    Scope.POSITIONS_WRITE: "open, settle and move positions",
    Scope.POISONS_READ: "read messages and deliveries, without bodies and header"
    " values",
    Scope.BODIES_READ: "read bodies, answers and header values; each reading is on the"
    " trail",
    Scope.PROBLEMS_READ: "read problems",
    Scope.OPERATIONS_READ: "read operations",
    Scope.OPERATIONS_WRITE: "requeue, drop and restore messages; retry, give up and"
    " restore deliveries",
    Scope.BROKERS_READ: "read brokers, topics, lanes and endpoints",
    Scope.BROKERS_WRITE: "add, change and remove brokers, topics, lanes and endpoints",
    Scope.AUDIT_READ: "read and verify the audit trail; only with all topics",
    Scope.REPORTS_READ: "read reports",
    Scope.REPORTS_WRITE: "start nightly reports",
    Scope.METRICS_READ: "read /metrics",
    Scope.GATEWAY_CALL: "call endpoints through the gateway: their topics are"
    " gateway/NAME",
}


def _password_field(remedy: str = "enter a password") -> forms.CharField:
    """Return a form field for a password; `remedy` is its error when left empty."""
    return forms.CharField(
        strip=False,
        max_length=PASSWORD_LIMIT,
        error_messages={
            "required": remedy,
            "max_length": f"give at most {PASSWORD_LIMIT:,} characters",
        },
    )


def _name_field(limit: int) -> forms.CharField:
    """Return a form field for a name of at most `limit` characters."""
    remedy = f"give a name of up to {limit} characters"
    return forms.CharField(
        strip=False,
        max_length=limit,
        error_messages={"required": remedy, "max_length": remedy},
    )


def _role_field() -> forms.ChoiceField:
    """Return a form field to choose a role."""
    remedy = f"choose one of {', '.join(Role)}"
    return forms.ChoiceField(
        choices=[(role.value, role.value) for role in Role],
        error_messages={"required": remedy, "invalid_choice": remedy},
    )


class RightsForm(forms.Form):
    """A person's role, and whether they may read bodies."""

    role = _role_field()
    reads_bodies = forms.BooleanField(required=False)

    @classmethod
    def of(cls, user: User) -> RightsForm:
        """Return a form with the current rights of a person."""
        return cls({"role": user.role, "reads_bodies": user.reads_bodies})

    def save(self, user: User, *, actor: Actor, now: datetime) -> User:
        """Set a person's role, and right to read bodies, as entered in the form.

        Raises Invalid for a wrong field, and Refused for the last admin.
        """
        require_valid(self)
        return services.alter_user(
            username=user.username,
            role=Role(self.cleaned_data["role"]),
            reads_bodies=self.cleaned_data["reads_bodies"],
            actor=actor,
            now=now,
        )


class NewPersonForm(RightsForm):
    username = _name_field(USERNAME_LIMIT)
    password = _password_field()

    def add(self, *, actor: Actor, now: datetime) -> User:
        """Add the person that was entered; raises Invalid for the first wrong field."""
        require_valid(self)
        values = self.cleaned_data
        return services.create_user(
            username=values["username"],
            password=values["password"],
            role=Role(values["role"]),
            reads_bodies=values["reads_bodies"],
            actor=actor,
            now=now,
        )


class PasswordForm(forms.Form):
    password = _password_field()

    @property
    def value(self) -> str:
        """Return the new password; raises Invalid without one."""
        require_valid(self)
        return str(self.cleaned_data["password"])


class OwnPasswordForm(PasswordForm):
    present = _password_field("enter your present password")
    repeated = _password_field("enter the new password a second time")
    field_order = ("present", "password", "repeated")

    @property
    def value(self) -> str:
        """Return one's own new password; raises Invalid if repeated differently."""
        password = super().value
        if password != self.cleaned_data["repeated"]:
            raise Invalid("repeated", "this is not the same as the new password")
        return password


class KeyForm(forms.Form):
    """A new API key; its last day is a UTC day."""

    name = _name_field(NAME_LIMIT)
    scopes = forms.MultipleChoiceField(
        choices=[(scope.value, scope.value) for scope in Scope],
        error_messages={
            "required": "tick at least one scope",
            "invalid_choice": "tick scopes of the list",
        },
    )
    topics = forms.CharField(
        max_length=MOST_PATTERNS * (PATTERN_LIMIT + 2),
        error_messages={
            "required": "name at least one topic, or * for all",
            "max_length": f"give at most {MOST_PATTERNS} names or patterns of topics",
        },
    )
    expires = forms.DateField(
        required=False,
        error_messages={"invalid": "write a day as 2027-01-31, or nothing"},
    )

    @classmethod
    def usual(cls, now: datetime) -> dict[str, Any]:
        """Return the initial values of the form of an API key."""
        return {"topics": "*", "expires": f"{now + USUAL_LIFE:%Y-%m-%d}"}

    @property
    def ticked(self) -> list[str]:
        """List the scopes to tick when the form of an API key is shown."""
        return self.data.getlist("scopes") if isinstance(self.data, QueryDict) else []

    def make(self, *, actor: Actor, now: datetime) -> NewKey:
        """Create the API key; raises Invalid for the first wrong field."""
        require_valid(self)
        values = self.cleaned_data
        return services.create_api_key(
            name=values["name"],
            scopes=values["scopes"],
            topics=_topics(values["topics"]),
            expires_at=self._expires_at(now),
            actor=actor,
            now=now,
        )

    def _expires_at(self, now: datetime) -> datetime | None:
        """Return when the API key's last day ends; raises Invalid if it is over."""
        last = self.cleaned_data["expires"]
        if last is None:
            return None
        if last < now.date():
            raise Invalid("expires", "give a day that is not over yet, or none")
        return datetime.combine(last, time.max, UTC)


def _topics(text: str) -> list[str]:
    """Split topic names at line ends and commas, and drop duplicates."""
    names = (name.strip() for name in re.split(r"[,\r\n]", text))
    return list(dict.fromkeys(name for name in names if name))


def field_of(wrong: PoisonwebError | None) -> str:
    """Return the wrong field of a person or key; "" if the error names none."""
    if not isinstance(wrong, Invalid):
        return ""
    return {"scope": "scopes"}.get(wrong.field, wrong.field)
