"""An authenticator app (RFC 6238), and adding it as a person does."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from dataclasses import dataclass, field
from datetime import datetime

from django.test import Client

PASSWORD = "correct horse"
PERIOD = 30


def app_code(secret: str, moment: datetime) -> str:
    """Return the code that an authenticator app shows at this moment."""
    period = int(moment.timestamp()) // PERIOD
    key = base64.b32decode(secret)
    digest = hmac.digest(key, period.to_bytes(8, "big"), hashlib.sha1)
    start = digest[-1] & 15
    number = int.from_bytes(digest[start : start + 4], "big") & 0x7FFFFFFF
    return f"{number % 1_000_000:06}"


@dataclass
class Phone:
    """The secret and the recovery codes that the pages showed."""

    secret: str = ""
    recovery_codes: list[str] = field(default_factory=list)

    def code(self, moment: datetime) -> str:
        return app_code(self.secret, moment)


def add_factor(client: Client, moment: datetime, password: str = PASSWORD) -> Phone:
    """Add a second factor on the pages, with a phone of this moment's clock."""
    phone = Phone(secret_on(client.get("/second-factor").content.decode()))
    form = {"password": password, "code": phone.code(moment)}
    added = client.post("/second-factor", form)
    assert added.status_code == 200, added.content.decode()
    phone.recovery_codes = codes_on(added.content.decode())
    return phone


def secret_on(page: str) -> str:
    match = re.search('<code class="secret">([A-Z2-7]+)</code>', page)
    assert match, page
    return match[1]


def codes_on(page: str) -> list[str]:
    return re.findall("<li><code>([0-9]{4} [0-9]{4})</code></li>", page)
