"""The scope that a call requires; a view method without one refuses every caller."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final, Literal

from rest_framework.permissions import BasePermission
from rest_framework.request import Request

from apps.team.rights import Principal, Scope

# rest_framework.views imports this module, by way of the settings.
if TYPE_CHECKING:
    from rest_framework.views import APIView


class Anyone(Enum):
    """No scope in particular: a sign-in, or any key, will do."""

    SIGNED_IN = "signed in"


SIGNED_IN: Final = Anyone.SIGNED_IN
RequiredScope = Scope | Literal[Anyone.SIGNED_IN]


class HasScope(BasePermission):
    """Allow principals with the scope that the view names for this method."""

    def has_permission(self, request: Request, view: APIView) -> bool:
        """Check the scope that an API method needs; raises if the caller lacks it."""
        principal = request.auth
        if not isinstance(principal, Principal):
            return False
        if request.method not in view.allowed_methods:
            return True  # nothing would run: the view answers 405
        method = "GET" if request.method == "HEAD" else request.method
        required: RequiredScope | None = getattr(view, "scopes", {}).get(method)
        if isinstance(required, Scope):
            principal.require(required)
        return required is not None
