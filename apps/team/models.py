"""People and their roles, API keys, failed sign-ins, and answers to replayed POSTs."""

from __future__ import annotations

from datetime import datetime

from django.contrib.auth.models import AbstractUser
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q
from django.utils.crypto import salted_hmac

from apps.core.actor import Actor
from apps.team.rights import GRANTS, Principal, Role, Scope


class User(AbstractUser):
    """A person; reading bodies is a right of its own, independent of the role."""

    role = models.CharField(max_length=10, default=Role.VIEWER.value)
    reads_bodies = models.BooleanField(default=False)
    sessions_ended_at = models.DateTimeField(null=True)

    class Meta:
        db_table = "team_user"
        constraints = [
            models.CheckConstraint(
                name="team_user_role_is_known",
                condition=Q(role__in=[role.value for role in Role]),
            ),
        ]

    def get_session_auth_hash(self) -> str:
        """Return the hash that the user's sessions must match."""
        auth_hash = super().get_session_auth_hash()
        if self.sessions_ended_at is None:
            return auth_hash
        ended_at = self.sessions_ended_at.isoformat()
        return salted_hmac("team.sessions", auth_hash + ended_at).hexdigest()

    @property
    def is_admin(self) -> bool:
        return self.role == Role.ADMIN

    @property
    def principal(self) -> Principal:
        """Return the rights of the person: of the role, and to read bodies."""
        scopes = GRANTS[Role(self.role)]
        if self.reads_bodies:
            scopes |= {Scope.BODIES_READ}
        return Principal(actor=Actor.user(self.username), scopes=scopes)


class ApiKey(models.Model):
    """A program's API key; only the SHA-256 of its secret is stored."""

    name = models.CharField(max_length=100, unique=True)
    prefix = models.CharField(max_length=40)
    digest = models.BinaryField(unique=True)
    scopes = ArrayField(models.CharField(max_length=40))
    topics = ArrayField(models.TextField(), default=list)
    created_at = models.DateTimeField()
    created_by = models.TextField()
    expires_at = models.DateTimeField(null=True)
    revoked_at = models.DateTimeField(null=True)
    last_used_at = models.DateTimeField(null=True)
    refused_at = models.DateTimeField(null=True)

    class Meta:
        db_table = "team_api_key"
        constraints = [
            models.CheckConstraint(
                name="team_api_key_scopes_are_known",
                condition=Q(scopes__contained_by=[scope.value for scope in Scope]),
            ),
        ]

    def __str__(self) -> str:
        return self.name

    def state(self, now: datetime) -> str:
        """Return whether the API key is `usable`, `revoked` or `expired` now."""
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expires_at and self.expires_at <= now else "usable"

    @property
    def principal(self) -> Principal:
        """Return the rights of the API key: its scopes, on its topics."""
        return Principal(
            actor=Actor.key(self.name),
            scopes=frozenset(Scope(scope) for scope in self.scopes),
            topics=tuple(self.topics),
            source="api",
        )


class SignInFailures(models.Model):
    """Counts of recent wrong passwords and codes, by address and account."""

    class CountedBy(models.TextChoices):
        ADDRESS = "address"
        ACCOUNT_AT_ADDRESS = "account_at_address"
        ACCOUNT = "account"
        CODES_OF_ACCOUNT = "codes_of_account"

    counted_by = models.CharField(max_length=20)
    digest = models.BinaryField(help_text="SHA-256 of the address, the account or both")
    number = models.PositiveIntegerField()
    last_at = models.DateTimeField(db_index=True)

    class Meta:
        db_table = "team_sign_in_failures"
        constraints = [
            models.UniqueConstraint(
                fields=["counted_by", "digest"], name="team_sign_in_failures_once"
            ),
            models.CheckConstraint(
                name="team_sign_in_failures_counted_by_is_known",
                condition=Q(
                    counted_by__in=[
                        *("address", "account_at_address", "account"),
                        "codes_of_account",
                    ]
                ),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.number} by {self.counted_by}"


class IdempotencyKey(models.Model):
    """The stored response to a POST, returned when the same POST is repeated."""

    actor = models.TextField()
    key = models.CharField(max_length=255)
    fingerprint = models.BinaryField()
    status = models.PositiveSmallIntegerField()
    answer = models.BinaryField()
    created_at = models.DateTimeField(db_index=True)

    class Meta:
        db_table = "team_idempotency_key"
        constraints = [
            models.UniqueConstraint(
                fields=["actor", "key"], name="team_idempotency_key_once"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.actor} {self.key}"
