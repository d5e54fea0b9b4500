"""Scopes, the roles that grant them, and principals."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from apps.core.actor import Actor
from apps.core.errors import Forbidden
from apps.core.wildcard_patterns import matches


class Scope(StrEnum):
    CAPTURE_WRITE = "capture:write"
    SKIPS_READ = "skips:read"
    SKIPS_WRITE = "skips:write"
    POSITIONS_READ = "positions:read"
    POSITIONS_WRITE = "positions:write"
    POISONS_READ = "poisons:read"
    BODIES_READ = "bodies:read"
    PROBLEMS_READ = "problems:read"
    OPERATIONS_READ = "operations:read"
    OPERATIONS_WRITE = "operations:write"
    BROKERS_READ = "brokers:read"
    BROKERS_WRITE = "brokers:write"
    AUDIT_READ = "audit:read"
    REPORTS_READ = "reports:read"
    REPORTS_WRITE = "reports:write"
    METRICS_READ = "metrics:read"
    GATEWAY_CALL = "gateway:call"


class Role(StrEnum):
    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"


_READING = frozenset(
    {
        Scope.SKIPS_READ,
        Scope.POSITIONS_READ,
        Scope.POISONS_READ,
        Scope.PROBLEMS_READ,
        Scope.OPERATIONS_READ,
        Scope.BROKERS_READ,
        Scope.AUDIT_READ,
        Scope.REPORTS_READ,
    }
)
GRANTS: dict[Role, frozenset[Scope]] = {
    Role.VIEWER: _READING,
    Role.OPERATOR: _READING
    | {Scope.SKIPS_WRITE, Scope.POSITIONS_WRITE, Scope.OPERATIONS_WRITE},
    Role.ADMIN: frozenset(Scope) - {Scope.BODIES_READ},
}
ALL_TOPICS = ("*",)


@dataclass(frozen=True, kw_only=True, slots=True)
class Principal:
    """The actor of a request, its scopes, and the topics that it may act on.

    `topics` are names, or patterns with `*`; "*" is every topic.
    """

    actor: Actor
    scopes: frozenset[Scope]
    topics: tuple[str, ...] = ALL_TOPICS
    source: str = "ui"

    def may(self, scope: Scope) -> bool:
        return scope in self.scopes

    def require(self, scope: Scope) -> None:
        """Raise Forbidden unless this principal has the scope."""
        if not self.may(scope):
            raise Forbidden(f"This needs the right {scope}, which you do not have.")

    def sees(self, topic: str) -> bool:
        """Tell whether the principal may see a topic, by its patterns."""
        return any(matches(pattern, topic) for pattern in self.topics)

    @property
    def sees_every_topic(self) -> bool:
        """Tell whether a pattern of the principal is `*`, so all topics."""
        return "*" in self.topics

    def require_trail(self) -> None:
        """Raise Forbidden unless this principal may read the whole audit.

        It spans all topics, and leaving out entries would break its chain.
        """
        self.require(Scope.AUDIT_READ)
        if not self.sees_every_topic:
            raise Forbidden("The trail spans all topics; this key is for some of them.")
