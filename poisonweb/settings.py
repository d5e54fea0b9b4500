"""Django's settings; what varies between installations comes from `poisonweb.env`."""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import unquote, urlsplit

from django.core.exceptions import ImproperlyConfigured

from poisonweb import env as environment
from poisonweb.embedded import running_servers_file
from poisonweb.embedded.secrets import secret
from poisonweb.request_limits import MOST_OF_A_FORM

try:
    ENV = environment.load(os.environ)
    if ENV.database_url is None or ENV.celery_broker_url is None:
        # The embedded servers replace the settings that are missing.
        embedded = running_servers_file.environment(ENV.var)
        # In os.environ, because a broker's address may be `env:NAME`.
        os.environ.update({**embedded, **os.environ})
        ENV = environment.load(os.environ)
except (environment.BadEnvironment, running_servers_file.NotRunning) as problem:
    raise SystemExit(f"poisonweb: {problem}") from None

BASE_DIR = environment.ROOT
SECRET_KEY = ENV.secret_key or secret(ENV.var / "secret-key", size=48)
DEBUG = False
ALLOWED_HOSTS = ["127.0.0.1", "localhost", "[::1]", *ENV.allowed_hosts]

INSTALLED_APPS = [
    "poisonweb",
    "apps.core",
    "apps.audit",
    "apps.team",
    "apps.brokers",
    "apps.bookmarks",
    "apps.poison",
    "apps.capture",
    "apps.triage",
    "apps.redelivery",
    "apps.outbox",
    "apps.reports",
    "apps.dashboard",
    "apps.api",
    "rest_framework",
    "drf_spectacular",
    "django_htmx",
    "csp",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.postgres",
    "django.contrib.staticfiles",
    # Second factors, and accounts of the OpenID provider; both need `account`.
    "allauth.account",
    "allauth.mfa",
    "allauth.socialaccount",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "poisonweb.security_headers_middleware.SecurityHeadersMiddleware",
    "apps.core.request_id_and_proxy_warning_middleware.RequestIdMiddleware",
    "apps.core.request_id_and_proxy_warning_middleware.ForwardedMiddleware",
    "csp.middleware.CSPMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "allauth.account.middleware.AccountMiddleware",
    "apps.team.sign_in_and_session_middleware.IdleSessionMiddleware",
    "apps.team.sign_in_and_session_middleware.SignInRequiredMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
]

ROOT_URLCONF = "poisonweb.urls"
ASGI_APPLICATION = "poisonweb.asgi.application"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": False,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "apps.dashboard.context_processors.shell",
            ],
            "libraries": {
                "shared_page_tags": "apps.dashboard.templatetags.shared_page_tags"
            },
        },
    }
]


def _database(url: str) -> dict[str, Any]:
    """Translate DATABASE_URL into Django's settings."""
    parts = urlsplit(url)
    if parts.scheme not in {"postgres", "postgresql"} or not parts.path.strip("/"):
        raise ImproperlyConfigured(
            "DATABASE_URL must look like postgresql://user:password@host:5432/name"
        )
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": unquote(parts.path.lstrip("/")),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": parts.hostname or "",
        "PORT": str(parts.port or ""),
        "CONN_MAX_AGE": 0,
        "OPTIONS": {
            "connect_timeout": 5,
            "application_name": "poisonweb",
            # Postgres compares timestamps in UTC anyway; this is for what it prints.
            # Triggers do what sessions of the release before leave undone.
            "options": "-c timezone=UTC -c poisonweb.release=2",
        },
    }


DATABASES = {"default": _database(ENV.database_url or "")}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

AUTH_USER_MODEL = "team.User"
AUTHENTICATION_BACKENDS = [
    "apps.team.backends.PasswordBackend",
    # Without it, people who signed in through a removed provider are signed out.
    *(["apps.team.backends.ProviderBackend"] if ENV.oidc else []),
]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator"},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
    {
        "NAME": "django.contrib.auth.password_validation"
        ".UserAttributeSimilarityValidator",
        "OPTIONS": {"user_attributes": ["username"]},
    },
    {"NAME": "apps.team.password_rules.NotOfThisProduct"},
    {"NAME": "apps.team.password_rules.NotTheName"},
]
MFA_ADAPTER = "apps.team.second_factor_adapter.SealingAdapter"
MFA_TOTP_ISSUER = f"Poisonweb {ENV.environment}"
ACCOUNT_EMAIL_VERIFICATION = "none"
SOCIALACCOUNT_ADAPTER = "apps.team.openid.ProviderAdapter"
LOGIN_URL = "sign-in"
# The next page shows a message about the last action once. It is in a signed cookie, so
# that reading a page writes nothing. The app is not installed, because allauth would
# add messages of its own.
MESSAGE_STORAGE = "django.contrib.messages.storage.cookie.CookieStorage"
LOGIN_REDIRECT_URL = "home"
LOGOUT_REDIRECT_URL = "sign-in"

LANGUAGE_CODE = "en"
USE_I18N = False
USE_TZ = True
TIME_ZONE = "UTC"

STATIC_URL = "static/"
STATIC_ROOT = ENV.var / "static"
STATICFILES_DIRS = [BASE_DIR / "static"]
# Files that were not collected are served from their own folders.
WHITENOISE_USE_FINDERS = True
STATIC_ROOT.mkdir(parents=True, exist_ok=True)
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.InMemoryStorage"},
    "staticfiles": {"BACKEND": "poisonweb.static_files.Collected"},
}

# A browser accepts a cookie with this prefix over TLS only, and for no other host.
_PREFIX = "__Host-" if ENV.secure else ""
SESSION_COOKIE_NAME = f"{_PREFIX}pw_session"
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = ENV.secure
SESSION_COOKIE_SAMESITE = CSRF_COOKIE_SAMESITE = "Lax"
CSRF_COOKIE_NAME = f"{_PREFIX}pw_csrf"
SECURE_HSTS_SECONDS = 365 * 24 * 3600 if ENV.secure else 0
SECURE_SSL_REDIRECT = ENV.secure
# Programs and probes may call the web without the proxy, and a program that follows a
# redirect would only send its key unencrypted twice: so these get no redirect.
SECURE_REDIRECT_EXEMPT = [r"^api/", r"^metrics$", r"^healthz$", r"^readyz$"]
# Subdomains of an installation may lack TLS: the operator decides that, not we.
SILENCED_SYSTEM_CHECKS = ["security.W005", "security.W021"]
if not ENV.secure:  # one warning of ours (poisonweb.checks) replaces all of these
    SILENCED_SYSTEM_CHECKS += [f"security.W{n:03}" for n in (4, 8, 12, 16)]
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if ENV.secure else None
CSRF_TRUSTED_ORIGINS = [f"https://{host}" for host in ENV.allowed_hosts if ENV.secure]
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"

CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": ["'none'"],
        "script-src": ["'self'"],
        "style-src": ["'self'"],
        "img-src": ["'self'"],
        "font-src": ["'self'"],
        "connect-src": ["'self'"],
        "form-action": ["'self'"],
        "base-uri": ["'none'"],
        "frame-ancestors": ["'none'"],
    }
}

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "apps.api.authentication.ApiKeyAuthentication",
        "apps.api.authentication.SignedInAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["apps.api.permissions.HasScope"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["apps.api.bounded_json_parser.BoundedJSONParser"],
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "EXCEPTION_HANDLER": "apps.api.error_responses.problem",
    "UNAUTHENTICATED_USER": "django.contrib.auth.models.AnonymousUser",
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Poisonweb API",
    "VERSION": "1",
    "OAS_VERSION": "3.1.0",
    "SERVE_INCLUDE_SCHEMA": False,
    "SERVERS": [{"url": "/", "description": "where this schema is"}],
}

# For forms only: the API's parser reads its stream itself, up to its own limit.
DATA_UPLOAD_MAX_MEMORY_SIZE = MOST_OF_A_FORM
DATA_UPLOAD_MAX_NUMBER_FIELDS = 20_000

CELERY_BROKER_URL = ENV.celery_broker_url
if CELERY_BROKER_URL and CELERY_BROKER_URL.startswith(("redis://", "rediss://")):
    # With Celery's own transport, an entry that is no message ends the worker.
    CELERY_BROKER_TRANSPORT = (
        "poisonweb.celery_transport_ignoring_malformed_entries:TolerantTransport"
    )

POISONWEB_ENVIRONMENT = ENV.environment
POISONWEB_VAR = ENV.var
POISONWEB_BODY_LIMIT = ENV.body_limit
POISONWEB_REQUEST_LIMIT = ENV.request_limit
POISONWEB_BROKER_HOSTS = ENV.broker_hosts
POISONWEB_LOOPBACK_BROKERS = ENV.loopback_brokers
POISONWEB_ENDPOINT_HOSTS = ENV.endpoint_hosts
POISONWEB_GATEWAY_CALLS_PER_MINUTE = ENV.gateway_calls_per_minute
POISONWEB_ADMIN_PASSWORD = ENV.admin_password
POISONWEB_APPLICATION_ROLE = ENV.application_role
POISONWEB_APPLICATION_PASSWORD = ENV.application_password
POISONWEB_DEMO = ENV.demo
POISONWEB_REDIS_URL = ENV.redis_url
POISONWEB_LAKE = ENV.lake
POISONWEB_REPORT_HOUR = ENV.report_hour
POISONWEB_OIDC = ENV.oidc
POISONWEB_SECOND_FACTOR = ENV.second_factor
POISONWEB_AUDIT_CHECKPOINT_URL = ENV.audit_checkpoint_url

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"()": "apps.core.log_formatting.LineFormatter"}},
    "filters": {
        "bare": {"()": "apps.core.log_formatting.WithoutTraceback"},
        "few": {
            "()": "apps.core.log_formatting.RateLimitFilter",
            "lines": 10,
            "seconds": 60.0,
        },
    },
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["console"], "level": ENV.log_level},
    "loggers": {
        "uvicorn": {"handlers": [], "propagate": True},
        # A line per request, and three every two seconds for beat, have no use.
        "uvicorn.access": {"level": "WARNING"},
        "celery.app.trace": {"level": "WARNING"},
        "celery.beat": {"level": "WARNING"},
        "celery.worker.strategy": {"level": "WARNING"},
        "django.server": {"handlers": [], "propagate": True},
        "django.request": {"level": "ERROR"},
        # Strangers can cause any number of these: names of hosts, forms by scripts.
        "django.security": {"filters": ["bare", "few"]},
        "django.security.DisallowedHost": {"filters": ["bare", "few"]},
        "django.security.csrf": {"filters": ["bare", "few"]},
    },
}
