"""Storage of a broker's address; no page ever shows its secret again.

An address is stored in one of two ways: `env:NAME` names the variable that holds it, so
the database never does; anything else is sealed with a key derived from the
installation's own (`apps.core.secret_encryption`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Container

from apps.core import secret_encryption
from apps.core.errors import Invalid, Unavailable

FROM_ENVIRONMENT = "env:"
SEALED = "sealed:"
_PURPOSE = "brokers"

VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}")
VARIABLE_PREFIX = "BROKER_"
# The only setting of ours that holds a message broker's address: the sample's.
SAMPLE_VARIABLE = "POISONWEB_REDIS_URL"
_OWN_PREFIX = "POISONWEB_"
_OWN_VARIABLES = frozenset({"DATABASE_URL", "CELERY_BROKER_URL"})


def seal(url: str) -> str:
    """Encrypt a broker's address for storage; a sealed one stays as it is."""
    if url.startswith((FROM_ENVIRONMENT, SEALED)):
        return url
    if "\0" in url or not url.strip():
        raise Invalid("url", "give the broker's address, or env:NAME.")
    return SEALED + secret_encryption.seal(url, purpose=_PURPOSE)


def reveal(url: str) -> str:
    """Decrypt a stored broker address; raise `Unavailable` where that fails."""
    if url.startswith(FROM_ENVIRONMENT):
        name = url.removeprefix(FROM_ENVIRONMENT)
        if name not in os.environ:
            raise Unavailable(f"The address must be in {name}, which is not set.")
        return os.environ[name]
    if not url.startswith(SEALED):
        return url
    try:
        return secret_encryption.unseal(url.removeprefix(SEALED), purpose=_PURPOSE)
    except secret_encryption.OtherKey as broken:
        raise Unavailable(
            "The broker's address was sealed under another POISONWEB_SECRET_KEY: "
            "enter it again, or start with that key."
        ) from broken


def check_variable(
    url: str, *, is_sample: bool = False, allowed: Container[str] = ()
) -> None:
    """Raise Invalid where env:NAME names a variable that no broker may read."""
    if not url.startswith(FROM_ENVIRONMENT):
        return
    name = url.removeprefix(FROM_ENVIRONMENT)
    if not VARIABLE.fullmatch(name):
        raise Invalid("url", "name a variable of the environment behind env:")
    if name.startswith(VARIABLE_PREFIX) or url in allowed:
        return
    if is_sample and name == SAMPLE_VARIABLE:
        return
    example = f"{VARIABLE_PREFIX}ORDERS"
    raise Invalid(
        "url",
        f"{name} does not begin with {VARIABLE_PREFIX}: start the server with the "
        f"address in a variable such as {example}, and enter env:{example}.",
    )


def is_own_setting(name: str) -> bool:
    """Tell whether a variable is a setting of ours that no broker may read.

    That does not include the variable with the sample's address.
    """
    is_ours = name.startswith(_OWN_PREFIX) and name != SAMPLE_VARIABLE
    return is_ours or name in _OWN_VARIABLES


def storage_of(url: str) -> str:
    """Say where a broker's address is stored, without any part of it."""
    return url if url.startswith(FROM_ENVIRONMENT) else "kept, sealed"
