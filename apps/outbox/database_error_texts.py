"""Errors of producers' databases as pages and the API show them.

People who see an outbox see its errors, and the address of its database is a secret:
its host, user and password are left out of every text here. The log has whole texts.
Only what is wrong with tables is shown as it is to people who may change the address.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from apps.core.errors import PoisonwebError
from apps.outbox.producer_database_url import ProducerDatabase

NOT_SHOWN = "(not shown)"
# As libpq, Postgres and psycopg write them: in quotes, maybe with an address behind.
_QUOTED = re.compile(
    r"""\b(server at|certificate for|host name|hostaddr|host|user|role)(:?\s+)"""
    r"""(?:"[^"]*"|'[^']*')(?:\s\([0-9A-Fa-f.:%]+\))?"""
)


class ErrorTexts:
    """Clean the texts of one database."""

    def __init__(self, url: str) -> None:
        """Take a database's stored address, whose secrets are cut out of error texts.

        One that cannot be read has none: no error quotes anything of it.
        """
        self._secrets = _pattern_of(_secrets_of(url))

    def clean(self, text: str) -> str:
        """Return an error text without its database's host, user and password."""
        text = _QUOTED.sub(rf"\1\2{NOT_SHOWN}", text)
        return self._secrets.sub(NOT_SHOWN, text) if self._secrets else text


def _secrets_of(url: str) -> Iterable[str]:
    try:
        database = ProducerDatabase.read(url)
    except PoisonwebError:  # its own text quotes nothing of it
        return ()
    return (database.host, database.user, database.password)


def _pattern_of(secrets: Iterable[str]) -> re.Pattern[str] | None:
    """Compile a regex of a database's secret words; None without words.

    Each is matched as a whole: a user may be `a`.
    """
    words = sorted({each for each in secrets if each}, key=len, reverse=True)
    if not words:
        return None
    choices = "|".join(map(re.escape, words))
    return re.compile(rf"(?<!\w)(?:{choices})(?!\w)")
