"""Headers of every answer, beside those that Django and django-csp set."""

from __future__ import annotations

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse

Handler = Callable[[HttpRequest], HttpResponse]

# Features that our pages do not use, and that injected content must not use.
POLICY = ", ".join(
    f"{feature}=()"
    for feature in (
        *("accelerometer", "autoplay", "camera", "display-capture"),
        *("encrypted-media", "fullscreen", "geolocation", "gyroscope", "hid"),
        *("idle-detection", "local-fonts", "magnetometer", "microphone", "midi"),
        *("payment", "picture-in-picture", "publickey-credentials-create"),
        *("publickey-credentials-get", "screen-wake-lock", "serial", "usb"),
        "xr-spatial-tracking",
    )
)


def SecurityHeadersMiddleware(respond: Handler) -> Handler:  # noqa: N802 - named as Django does
    """Set headers of responses that deny browser features, other origins and caches.

    A header that the response has already stays. Pages contain bodies of messages and
    names of people (OWASP ASVS 5.0, 14.3.2).
    """

    def middleware(request: HttpRequest) -> HttpResponse:
        response = respond(request)
        response.setdefault("Permissions-Policy", POLICY)
        response.setdefault("Cross-Origin-Resource-Policy", "same-origin")
        response.setdefault("Cache-Control", "no-store")
        return response

    return middleware
