"""The ways in which the tests' OpenID provider can misbehave."""

from __future__ import annotations

from collections.abc import Callable

LARGE = "x" * 2 * 1024 * 1024
CONFIGURATION = "/.well-known/openid-configuration"
# By name: the end of the URL, and the change of its response.
ODD: dict[str, tuple[str, Callable[[dict[str, object]], object]]] = {
    "other issuer": (
        CONFIGURATION,
        lambda said: {**said, "issuer": "https://evil.test"},
    ),
    "no endpoint": (CONFIGURATION, lambda said: {**said, "token_endpoint": None}),
    "a list": (CONFIGURATION, lambda said: [said]),
    "no token": ("/oauth2/token", lambda _: {"error": "invalid_client"}),
    "no id_token": ("/oauth2/token", lambda said: {**said, "id_token": None}),
    "two people": ("/userinfo", lambda said: {**said, "sub": "somebody else"}),
    "no person": ("/userinfo", lambda _: ["nobody"]),
    "large": ("/userinfo", lambda said: {**said, "padding": LARGE}),
}
