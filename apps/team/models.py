"""WHO MAY DO WHAT: people, their roles, the keys of programs, and replayed requests."""

from __future__ import annotations

from django.contrib.auth.models import AbstractUser
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q

from apps.core.actor import Actor
from apps.team.rights import GRANTS, Principal, Role, Scope


class User(AbstractUser):
    """A person; reading bodies is a right of its own, given or not to any role."""

    role = models.CharField(max_length=10, default=Role.VIEWER.value)
    reads_bodies = models.BooleanField(default=False)

    class Meta:
        db_table = "team_user"
        constraints = [
            models.CheckConstraint(
                name="team_user_role_is_known",
                condition=Q(role__in=[role.value for role in Role]),
            ),
        ]

    @property
    def principal(self) -> Principal:
        scopes = GRANTS[Role(self.role)]
        if self.reads_bodies:
            scopes |= {Scope.BODIES_READ}
        return Principal(actor=Actor.user(self.username), scopes=scopes)


class ApiKey(models.Model):
    """A program's key; only the SHA-256 of its secret is kept."""

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

    @property
    def principal(self) -> Principal:
        return Principal(
            actor=Actor.key(self.name),
            scopes=frozenset(Scope(scope) for scope in self.scopes),
            topics=tuple(self.topics),
            source="api",
        )


class IdempotencyKey(models.Model):
    """The answer that a POST was given, for when the same POST comes again."""

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
