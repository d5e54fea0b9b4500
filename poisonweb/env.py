"""The environment, read once and checked, before anything else starts."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from apps.team.rights import Role

MIB = 1024 * 1024
LAST_HOUR = 23
MOST_CALLS = 10_000_000
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
ROOT = Path(__file__).resolve().parent.parent

KNOWN = frozenset(
    f"POISONWEB_{name}"
    for name in (
        "ADMIN_PASSWORD",
        "ALLOWED_HOSTS",
        "APPLICATION_PASSWORD",
        "APPLICATION_ROLE",
        "AUDIT_CHECKPOINT_URL",
        "BODY_LIMIT",
        "BROKER_HOSTS",
        "DEMO",
        "ENDPOINT_HOSTS",
        "ENVIRONMENT",
        "GATEWAY_CALLS_PER_MINUTE",
        "JDBC_JAR",
        "LAKE",
        "LOG_LEVEL",
        "LOOPBACK_BROKERS",
        "OIDC_CLIENT_ID",
        "OIDC_CLIENT_SECRET",
        "OIDC_GROUPS",
        "OIDC_GROUPS_CLAIM",
        "OIDC_ISSUER",
        "OIDC_NAME",
        "REDIS_URL",
        "REPORT_HOUR",
        "REQUEST_LIMIT",
        "SECOND_FACTOR",
        "SECRET_KEY",
        "SECURE",
        "VAR",
    )
)
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


class BadEnvironment(Exception):
    """A setting in the environment is unknown or unusable."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Oidc:
    """The OpenID provider that people may sign in with, and what its groups may do."""

    issuer: str
    client_id: str
    client_secret: str = field(repr=False)
    roles: Mapping[str, str]
    groups_claim: str
    name: str

    @property
    def origin(self) -> str:
        """Return scheme and host of the OpenID provider's address."""
        address = urlsplit(self.issuer)
        return f"{address.scheme}://{address.netloc}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Env:
    database_url: str | None
    celery_broker_url: str | None
    redis_url: str | None
    var: Path
    secret_key: str | None
    environment: str
    allowed_hosts: tuple[str, ...]
    secure: bool
    body_limit: int
    request_limit: int
    broker_hosts: tuple[str, ...]
    loopback_brokers: bool
    endpoint_hosts: tuple[str, ...]
    gateway_calls_per_minute: int
    admin_password: str | None
    demo: bool
    log_level: str
    lake: str
    report_hour: int
    audit_checkpoint_url: str | None
    second_factor: tuple[str, ...]
    oidc: Oidc | None
    application_role: str | None
    application_password: str | None


def load(environ: Mapping[str, str]) -> Env:
    """Read all settings of Poisonweb from the environment; raise BadEnvironment.

    The error names the remedy.
    """
    _refuse_unknown(environ)
    _refuse_missing_file(environ, "POISONWEB_JDBC_JAR")
    var = Path(environ.get("POISONWEB_VAR") or ROOT / "var").resolve()
    return Env(
        database_url=environ.get("DATABASE_URL") or None,
        celery_broker_url=environ.get("CELERY_BROKER_URL") or None,
        redis_url=environ.get("POISONWEB_REDIS_URL") or None,
        var=var,
        secret_key=environ.get("POISONWEB_SECRET_KEY") or None,
        environment=_environment(environ.get("POISONWEB_ENVIRONMENT") or "local"),
        allowed_hosts=_words(environ.get("POISONWEB_ALLOWED_HOSTS", "")),
        secure=_flag(environ, "POISONWEB_SECURE", default=False),
        # Above the largest message that a supported broker carries (Redis: 512 MiB).
        body_limit=_size(environ, "POISONWEB_BODY_LIMIT", default=512 * MIB),
        request_limit=_size(environ, "POISONWEB_REQUEST_LIMIT", default=96 * MIB),
        broker_hosts=_words(environ.get("POISONWEB_BROKER_HOSTS", "")),
        loopback_brokers=_flag(environ, "POISONWEB_LOOPBACK_BROKERS", default=False),
        endpoint_hosts=_words(environ.get("POISONWEB_ENDPOINT_HOSTS", "")),
        gateway_calls_per_minute=_calls(environ, default=120_000),
        admin_password=environ.get("POISONWEB_ADMIN_PASSWORD") or None,
        demo=_flag(environ, "POISONWEB_DEMO", default=True),
        log_level=_level(environ.get("POISONWEB_LOG_LEVEL") or "INFO"),
        lake=environ.get("POISONWEB_LAKE") or str(var / "lake"),
        report_hour=_hour(environ.get("POISONWEB_REPORT_HOUR") or "1"),
        audit_checkpoint_url=_web_address(environ, "POISONWEB_AUDIT_CHECKPOINT_URL"),
        second_factor=_roles(environ.get("POISONWEB_SECOND_FACTOR", "")),
        oidc=_oidc(environ),
        application_role=environ.get("POISONWEB_APPLICATION_ROLE") or None,
        application_password=environ.get("POISONWEB_APPLICATION_PASSWORD") or None,
    )


def _refuse_unknown(environ: Mapping[str, str]) -> None:
    """Raise BadEnvironment for a POISONWEB_ variable that is no setting."""
    for name in environ:
        if name.startswith("POISONWEB_") and name not in KNOWN:
            near = difflib.get_close_matches(name, KNOWN, n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            names = ", ".join(sorted(KNOWN))
            raise BadEnvironment(f"{name} is not a setting.{hint} There are: {names}.")


def _refuse_missing_file(environ: Mapping[str, str], name: str) -> None:
    """Raise BadEnvironment if the file for the Spark job is missing."""
    path = environ.get(name)
    if path and not Path(path).is_file():
        raise BadEnvironment(f"{name} is {path!r}: there is no such file.")


def _hour(value: str) -> int:
    """Parse the setting of the nightly report's hour, in UTC; raises BadEnvironment."""
    if not (value.isascii() and value.isdigit() and int(value) <= LAST_HOUR):
        raise BadEnvironment(
            f"POISONWEB_REPORT_HOUR is {value!r}: use an hour of UTC from 0 to 23."
        )
    return int(value)


def _environment(value: str) -> str:
    """Check and return the installation's name, which its API keys contain.

    Raises BadEnvironment for another text.
    """
    # It is part of API keys (pw_<environment>_...), so it has no underscore.
    if not (value.isascii() and value.replace("-", "").isalnum() and len(value) <= 20):
        raise BadEnvironment(
            f"POISONWEB_ENVIRONMENT is {value!r}: use up to 20 letters, digits, dashes."
        )
    return value


def _web_address(environ: Mapping[str, str], name: str) -> str | None:
    """Read an http or https address; no error quotes it, as it may contain a secret."""
    value = environ.get(name)
    if not value:
        return None
    if _address(value) is None:
        raise BadEnvironment(
            f"{name} is not an address: use one such as https://example.com/checkpoints."
        )
    return value


def _address(value: str) -> SplitResult | None:
    """Parse the http or https address in a setting; return None for any other text."""
    try:
        address = urlsplit(value)
        usable = address.scheme in {"http", "https"} and bool(address.hostname)
        usable = usable and address.port != 0 and value.isascii()
    except ValueError:
        return None
    return address if usable and value.isprintable() and " " not in value else None


def _roles(value: str) -> tuple[str, ...]:
    """Parse the names of the roles that need a second factor."""
    roles = _words(value)
    if not set(roles) <= set(Role):
        raise BadEnvironment(
            f"POISONWEB_SECOND_FACTOR is {value!r}: use roles, with commas:"
            f" {', '.join(Role)}."
        )
    return roles


# The required settings of single sign-on, and those with a default.
_OF_OIDC = ("ISSUER", "CLIENT_ID", "CLIENT_SECRET", "GROUPS")
_MORE_OF_OIDC = ("GROUPS_CLAIM", "NAME")
# An account is stored with its issuer.
LONGEST_ISSUER = 200


def _oidc(environ: Mapping[str, str]) -> Oidc | None:
    """Read the settings of single sign-on; None without any of them."""
    names = (*_OF_OIDC, *_MORE_OF_OIDC)
    values = {name: environ.get(f"POISONWEB_OIDC_{name}") or "" for name in names}
    if not any(values.values()):
        return None
    missing = [f"POISONWEB_OIDC_{name}" for name in _OF_OIDC if not values[name]]
    if missing:
        raise BadEnvironment(
            f"{', '.join(missing)} is missing: give all of POISONWEB_OIDC_ISSUER,"
            " _CLIENT_ID, _CLIENT_SECRET and _GROUPS, or none of POISONWEB_OIDC_*."
        )
    issuer = _issuer(values["ISSUER"])
    return Oidc(
        issuer=issuer,
        client_id=values["CLIENT_ID"],
        client_secret=values["CLIENT_SECRET"],
        roles=dict(_group(word) for word in _words(values["GROUPS"])),
        groups_claim=values["GROUPS_CLAIM"] or "groups",
        name=values["NAME"] or str(urlsplit(issuer).hostname),
    )


def _issuer(value: str) -> str:
    """Check and return the OpenID provider's address: https, or on this machine.

    Raises BadEnvironment for any other.
    """
    address = _address(value)
    is_safe = address is not None and (
        address.scheme == "https" or address.hostname in LOOPBACK
    )
    is_plain = address is not None and not (
        address.query or address.fragment or "@" in address.netloc
    )
    if not (is_safe and is_plain and len(value) <= LONGEST_ISSUER):
        raise BadEnvironment(
            f"POISONWEB_OIDC_ISSUER is {value!r}: use the https address that the"
            " provider calls its issuer, as in https://login.example.com/realms/work."
        )
    return value


def _group(word: str) -> tuple[str, str]:
    """Parse `group=role`: the role of the members of a provider's group."""
    group, _, role = word.rpartition("=")
    if not group or role not in set(Role):
        raise BadEnvironment(
            f"POISONWEB_OIDC_GROUPS has {word!r}: use group=role with commas, such as"
            f" leads=admin,ops=operator; roles are {', '.join(Role)}."
        )
    return group, role


def _words(value: str) -> tuple[str, ...]:
    """Split a setting at commas, without blanks and empty words."""
    return tuple(word.strip() for word in value.split(",") if word.strip())


def _flag(environ: Mapping[str, str], name: str, *, default: bool) -> bool:
    """Read a setting that is 1 or 0."""
    value = environ.get(name, "")
    if value not in {"", "0", "1"}:
        raise BadEnvironment(f"{name} is {value!r}: use 1 or 0.")
    return default if value == "" else value == "1"


def _size(environ: Mapping[str, str], name: str, *, default: int) -> int:
    """Read a setting that is a number of bytes."""
    value = environ.get(name) or str(default)
    if not (value.isascii() and value.isdigit() and 0 < int(value) <= 512 * MIB):
        raise BadEnvironment(
            f"{name} is {value!r}: use a number of bytes from 1 to {512 * MIB}."
        )
    return int(value)


def _calls(environ: Mapping[str, str], *, default: int) -> int:
    """Read from the settings how often an API key may call an endpoint in a minute."""
    value = environ.get("POISONWEB_GATEWAY_CALLS_PER_MINUTE") or str(default)
    if not (value.isascii() and value.isdigit() and 0 < int(value) <= MOST_CALLS):
        raise BadEnvironment(
            f"POISONWEB_GATEWAY_CALLS_PER_MINUTE is {value!r}: use a number from 1 to"
            f" {MOST_CALLS}."
        )
    return int(value)


def _level(value: str) -> str:
    """Parse the setting of the log level to its name; raises BadEnvironment."""
    if value.upper() not in LEVELS:
        raise BadEnvironment(
            f"POISONWEB_LOG_LEVEL is {value!r}: use one of {', '.join(LEVELS)}."
        )
    return value.upper()
