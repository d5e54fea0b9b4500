"""Sign in through the OpenID provider: redirect to it, and complete the callback.

allauth implements the protocol (authorization code with PKCE). This module limits the
requests to the provider, admits people (`single_sign_on_accounts`), and translates
errors.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from threading import BoundedSemaphore
from typing import Any

import requests
from allauth.core.exceptions import ImmediateHttpResponse
from allauth.socialaccount.adapter import DefaultSocialAccountAdapter
from allauth.socialaccount.models import (
    SocialAccount,
    SocialApp,
    SocialLogin,
    SocialToken,
)
from allauth.socialaccount.providers.base import AuthError
from allauth.socialaccount.providers.oauth2.client import OAuth2Error
from allauth.socialaccount.providers.oauth2.views import OAuth2CallbackView
from allauth.socialaccount.providers.openid_connect.provider import (
    OpenIDConnectProvider,
)
from allauth.socialaccount.providers.openid_connect.views import (
    OpenIDConnectOAuth2Adapter,
)
from django.conf import settings
from django.contrib.auth import login
from django.db import connection
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse

from apps.core import clock
from apps.core.errors import Forbidden, PoisonwebError, Unavailable
from apps.core.text_cleaning import is_name
from apps.team import sign_in_attempts, single_sign_on_accounts
from apps.team.single_sign_on_accounts import ProviderIdentity

log = logging.getLogger(__name__)

# Groups are read at sign-in only: a person who lost theirs must sign in again.
LONGEST_SESSION = timedelta(hours=12)
# As long as allauth remembers a sign-in that was begun.
BEGUN_FOR = timedelta(minutes=10)
MOST_BYTES = 1024 * 1024
CONNECT_SECONDS, READ_SECONDS, ANSWER_SECONDS = 3.0, 5.0, 10.0
AT_ONCE, LONGEST_WAIT_SECONDS = 4, 5.0
_slots = BoundedSemaphore(AT_ONCE)
DESCRIPTION_SECONDS = 300.0
_descriptions: dict[str, tuple[float, dict[str, Any]]] = {}
SUBJECT_LIMIT = 191
_ENDPOINTS = ("authorization_endpoint", "token_endpoint", "userinfo_endpoint")
NOT_USABLE = (
    "The provider's answer cannot be used: who runs Poisonweb sees why in the log."
)
AWAY = "The provider does not answer as it should: try again in a moment."


def begin(request: HttpRequest, *, next_url: str) -> HttpResponse:
    """Redirect to the sign-in of the OpenID provider, then to `next_url`.

    Raises Unavailable while the provider is away.
    """
    with _translated_errors():
        if not request.user.is_authenticated:
            # Any stranger may begin a sign-in: its session must expire soon.
            request.session.set_expiry(BEGUN_FOR)
        redirection = _provider(request).redirect(request, "login", next_url=next_url)
    response: HttpResponse = redirection
    return response


def complete(request: HttpRequest) -> HttpResponse:
    """Sign in the person who returns from the OpenID provider.

    Raises Forbidden or Refused if they may not, or if this browser began no sign-in.
    """
    with _translated_errors():
        view = OAuth2CallbackView.adapter_view(_Protocol(request, _issuer()))
        response: HttpResponse = view(request)
    return response


@contextmanager
def _translated_errors() -> Iterator[None]:
    """Raise Unavailable for the OpenID provider's failures and odd answers."""
    try:
        yield
    except requests.RequestException as away:
        log.warning("the OpenID provider is away: %s", _error_line(away))
        raise Unavailable(AWAY) from away
    except (OAuth2Error, KeyError, TypeError, ValueError, AttributeError) as odd:
        log.warning(
            "the OpenID provider's answer cannot be used: %s",
            _error_line(odd),
            exc_info=odd,
        )
        raise Unavailable(NOT_USABLE) from odd


def _error_line(error: BaseException) -> str:
    """Format an error of the sign-in for the log, cut to 500 characters."""
    return f"{type(error).__name__}: {error}"[:500]


class ProviderAdapter(DefaultSocialAccountAdapter):  # type: ignore[misc]  # it has no types
    """The hooks that allauth calls during a sign-in."""

    def get_requests_session(self) -> requests.Session:
        """Return the HTTP session that limits the provider's answers."""
        return _BoundedSession()

    def pre_social_login(self, request: HttpRequest, sociallogin: SocialLogin) -> None:
        """Sign the person in, and leave allauth's flow before it adds accounts."""
        identity = _identity(sociallogin)
        now = clock.now()
        try:
            user = single_sign_on_accounts.admit(identity, now=now)
        except PoisonwebError as refusal:
            account = single_sign_on_accounts.account_of(identity)
            sign_in_attempts.note_refusal(
                request, account=account, why=str(refusal), now=now
            )
            raise
        login(request, user, backend=sign_in_attempts.BY_PROVIDER)
        request.session.set_expiry(now + LONGEST_SESSION)
        next_url = sociallogin.get_redirect_url(request) or settings.LOGIN_REDIRECT_URL
        raise ImmediateHttpResponse(redirect(next_url))

    def on_authentication_error(
        self,
        request: HttpRequest,
        provider: Any,  # noqa: ARG002 - allauth's signature
        error: Any = None,
        exception: Exception | None = None,
        extra_context: Mapping[str, Any] | None = None,
    ) -> None:
        """Raise why a sign-in at the OpenID provider failed: Forbidden, or the error.

        Our page shows the reason; allauth's own error page has none.
        """
        if exception is not None:
            raise exception
        if error == AuthError.CANCELLED:
            raise Forbidden(
                "You did not agree at the provider: begin again to sign in."
            )
        if extra_context and "state" in extra_context:
            code = str(request.GET.get("error", "no code"))[:100]
            log.warning("the OpenID provider refused a sign-in: %s", ascii(code))
            raise Forbidden("The provider refused the sign-in.")
        raise Forbidden(
            "This sign-in was not begun in this browser, or more than ten minutes ago:"
            " begin again."
        )


class _Protocol(OpenIDConnectOAuth2Adapter):  # type: ignore[misc]  # it has no types
    """allauth's OpenID Connect adapter for the one provider in the settings."""

    def get_provider(self) -> _Provider:
        """Return the configured provider, with no row of allauth's."""
        return _provider(self.request)

    def get_callback_url(
        self,
        request: HttpRequest,
        app: SocialApp,  # noqa: ARG002 - allauth's signature
    ) -> str:
        """Return our callback's absolute URL, to which the provider returns."""
        return request.build_absolute_uri(reverse("sign-in-provider-callback"))

    @property
    def openid_config(self) -> dict[str, Any]:
        """Return the endpoints of the provider, from the cache or the provider."""
        return _description(_issuer())

    def parse_token(self, data: dict[str, Any]) -> SocialToken:
        """Return only the access token of the OpenID provider's answer."""
        return SocialToken(token=data["access_token"])

    def complete_login(
        self, request: HttpRequest, app: SocialApp, token: SocialToken, **kwargs: Any
    ) -> SocialLogin:
        """Fetch a sign-in's claims; raise OAuth2Error unless of one subject."""
        if "id_token" not in kwargs["response"]:
            raise OAuth2Error("there is no id_token")
        social_login = super().complete_login(request, app, token, **kwargs)
        claims = social_login.account.extra_data
        # OpenID Connect Core 1.0, 5.3.2: otherwise they may belong to two people.
        if claims["userinfo"]["sub"] != claims["id_token"]["sub"]:
            raise OAuth2Error("userinfo is of another subject than the id_token")
        if not is_name(claims["id_token"]["sub"], limit=SUBJECT_LIMIT):
            raise OAuth2Error("its subject cannot be kept")
        return social_login


class _Provider(OpenIDConnectProvider):  # type: ignore[misc]  # it has no types
    oauth2_adapter_class = _Protocol

    def sociallogin_from_response(
        self,
        request: HttpRequest,  # noqa: ARG002 - allauth's signature
        response: dict[str, Any],
    ) -> SocialLogin:
        """Wrap the claims of an OpenID sign-in for allauth; store nothing."""
        # Without a uid allauth finds no account: it would store the claims with it.
        account = SocialAccount(provider=self.sub_id, extra_data=response)
        return SocialLogin(provider=self, account=account)


def _issuer() -> str:
    """Return the issuer of the OpenID provider; raise Absent without one."""
    return single_sign_on_accounts.provider_settings().issuer


def _provider(request: HttpRequest) -> _Provider:
    """Build allauth's provider from our settings; raise Absent without one."""
    oidc = single_sign_on_accounts.provider_settings()
    app = SocialApp(
        provider=_Provider.id,
        provider_id=oidc.issuer,
        name=oidc.name,
        client_id=oidc.client_id,
        secret=oidc.client_secret,
        settings={"oauth_pkce_enabled": True, "scope": ["openid", "profile", "email"]},
    )
    return _Provider(request, app=app)


def _identity(social_login: SocialLogin) -> ProviderIdentity:
    """Read issuer, subject, name and groups from the claims of a sign-in."""
    claims = social_login.account.extra_data
    merged = {**claims["id_token"], **claims["userinfo"]}
    groups = merged.get(single_sign_on_accounts.provider_settings().groups_claim)
    name = merged.get("preferred_username") or merged.get("email") or merged["sub"]
    return ProviderIdentity(
        issuer=_issuer(),
        subject=merged["sub"],
        name=str(name),
        groups=_group_names(groups),
    )


def _group_names(claim: object) -> frozenset[str]:
    """Parse the claim of groups: a text or a list of texts; else no group."""
    names = claim if isinstance(claim, list) else [claim]
    return frozenset(name for name in names if isinstance(name, str))


def _description(issuer: str) -> dict[str, Any]:
    """Return the provider's endpoints, cached for five minutes."""
    read_at, cached = _descriptions.get(issuer, (0.0, None))
    if cached is not None and time.monotonic() - read_at < DESCRIPTION_SECONDS:
        return cached
    address = f"{issuer.rstrip('/')}/.well-known/openid-configuration"
    with _BoundedSession() as session:
        answer = session.get(address)
    answer.raise_for_status()
    description: dict[str, Any] = answer.json()
    if description["issuer"] != issuer:
        other = ascii(str(description["issuer"])[:200])
        raise OAuth2Error(f"its issuer is {other}, POISONWEB_OIDC_ISSUER is {issuer}")
    if not all(isinstance(description[each], str) for each in _ENDPOINTS):
        raise OAuth2Error(f"it does not tell all of {', '.join(_ENDPOINTS)}")
    _descriptions[issuer] = time.monotonic(), description
    return description


class _BoundedSession(requests.Session):
    """Limit requests in number, time and size, and hold no database connection."""

    def request(self, *args: Any, **kwargs: Any) -> requests.Response:
        """Call the provider with limits of time and size, and no redirect."""
        if not connection.in_atomic_block:
            connection.close()
        if not _slots.acquire(timeout=LONGEST_WAIT_SECONDS):
            raise Unavailable(AWAY)
        try:
            bounds = {
                "timeout": (CONNECT_SECONDS, READ_SECONDS),
                "allow_redirects": False,
                "stream": True,
            }
            answer = super().request(*args, **{**kwargs, **bounds})
            return _whole(answer)
        finally:
            _slots.release()


def _whole(answer: requests.Response) -> requests.Response:
    """Read the provider's answer, unless it is too large or comes too slowly."""
    deadline = time.monotonic() + ANSWER_SECONDS
    body = bytearray()
    with answer:
        for chunk in answer.iter_content(8192):
            body += chunk
            if len(body) > MOST_BYTES or time.monotonic() > deadline:
                raise requests.ConnectionError("the answer is too large or too slow")
    answer._content = bytes(body)  # noqa: SLF001 - as `content` itself would store it
    return answer
