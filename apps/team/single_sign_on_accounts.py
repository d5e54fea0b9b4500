"""Admit people whom the provider has authenticated, with the role of their groups.

Accounts are found by issuer and subject only. At many providers people choose their
name and e-mail address themselves, and could take over an account found by those.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from allauth.socialaccount.models import SocialAccount
from django.conf import settings
from django.db import IntegrityError, transaction

from apps.audit import services as audit
from apps.audit.services import Action
from apps.core.actor import Actor
from apps.core.errors import Absent, Forbidden, Refused
from apps.core.text_cleaning import is_name, resembles_system_name
from apps.team.models import User
from apps.team.rights import Role
from apps.team.services import USERNAME_LIMIT, alter_user, end_sessions

if TYPE_CHECKING:
    from poisonweb.env import Oidc

PROVIDER = Actor.system("single sign-on")
# In order of power, the most powerful last.
_ORDER = (Role.VIEWER, Role.OPERATOR, Role.ADMIN)


@dataclass(frozen=True, kw_only=True, slots=True)
class ProviderIdentity:
    """A person as their provider describes them."""

    issuer: str
    subject: str
    name: str
    groups: frozenset[str]

    @property
    def role(self) -> Role | None:
        """Return the most powerful role of a person's groups, None without one."""
        roles = provider_settings().roles
        own_roles = {Role(roles[group]) for group in self.groups if group in roles}
        return max(own_roles, key=_ORDER.index, default=None)


def provider_settings() -> Oidc:
    """Return the OpenID provider's settings; raises Absent without a provider."""
    if settings.POISONWEB_OIDC is None:
        raise Absent("People sign in with a name and a password here.")
    return settings.POISONWEB_OIDC


def admit(identity: ProviderIdentity, *, now: datetime) -> User:
    """Return the person's account, with the role of today's groups; add a missing one.

    Raises Forbidden if no group of theirs has a role or the account is disabled, and
    Refused if the account cannot be added.
    """
    try:
        return _admit(identity, now=now)
    except IntegrityError:
        # The account or its name was added meanwhile: look again.
        return _admit(identity, now=now)


def _admit(identity: ProviderIdentity, *, now: datetime) -> User:
    """Return the person's account, its role updated; raise what refuses them."""
    with transaction.atomic():
        # Check the name first: an account that another sign-in of this person adds in
        # between is their own, and does not count as another person's.
        is_taken = _is_taken(identity.name)
        user = account_of(identity)
        if user is not None:
            User.objects.select_for_update().get(pk=user.pk)
        refusal = _refusal(identity, user, is_taken=is_taken)
        if refusal is None:
            return _with_role_of(identity, user, now=now)
        if user is not None and identity.role is None:
            end_sessions(username=user.username, actor=PROVIDER, now=now)
    raise refusal


def account_of(identity: ProviderIdentity) -> User | None:
    """Find the account of an OpenID issuer and subject."""
    of = {"socialaccount__provider": identity.issuer}
    return User.objects.filter(**of, socialaccount__uid=identity.subject).first()


def _is_taken(name: str) -> bool:
    """Tell whether another account has this name, in any case of letters."""
    can_be_kept = is_name(name, limit=USERNAME_LIMIT)
    return can_be_kept and User.objects.filter(username__iexact=name).exists()


def _refusal(
    identity: ProviderIdentity, user: User | None, *, is_taken: bool
) -> Forbidden | Refused | None:
    """Return why a person of the OpenID provider is refused, as an error; else None."""
    if identity.role is None:
        return Forbidden(
            "You are in no group that may use Poisonweb. Ask who runs it to let a group"
            " of yours in."
        )
    if user is not None:
        disabled = Forbidden("This account is disabled: ask an admin.")
        return None if user.is_active else disabled
    name = identity.name
    if resembles_system_name(name):
        return Refused(
            f"The name {name} would look like Poisonweb's own on the trail. Ask an"
            " admin to have another one sent by your provider."
        )
    if not is_name(name, limit=USERNAME_LIMIT):
        return Refused(
            "Your provider gives no name that can be used here: it needs up to"
            f" {USERNAME_LIMIT} characters that can be seen."
        )
    if is_taken:
        return Refused(
            f"There is another account called {name} here already, so that yours cannot"
            " be added. Ask an admin to have one of the two names changed."
        )
    return None


def _with_role_of(
    identity: ProviderIdentity, user: User | None, *, now: datetime
) -> User:
    """Give a person's account the role of the groups; add a missing account."""
    role = identity.role or Role.VIEWER
    if user is None:
        return _add_account(identity, role=role, now=now)
    return alter_user(
        username=user.username,
        role=role,
        may_leave_no_admin=True,
        actor=PROVIDER,
        now=now,
    )


def _add_account(identity: ProviderIdentity, *, role: Role, now: datetime) -> User:
    """Insert an account for a person of the provider, and audit that."""
    values: dict[str, Any] = {"username": identity.name, "role": role.value}
    user = User.objects.create_user(**values)
    SocialAccount.objects.create(
        user=user, provider=identity.issuer, uid=identity.subject
    )
    audit.record(
        action=Action.USER_CREATED,
        subject=f"user:{user.username}",
        actor=PROVIDER,
        now=now,
        detail={
            "role": role.value,
            "reads_bodies": False,
            "issuer": identity.issuer,
            "subject": identity.subject,
        },
    )
    return user
