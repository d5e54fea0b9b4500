"""Hand a checkpoint to a place of the operator's own, over HTTP."""

from __future__ import annotations

import urllib3
from urllib3.exceptions import HTTPError
from urllib3.util import Timeout, make_headers, parse_url

from apps.audit.checkpoints import Checkpoint
from apps.core.errors import Unavailable

LONGEST_SECONDS = 8.0
FIRST_REFUSAL = 300


def post(checkpoint: Checkpoint, *, url: str) -> None:
    """POST its line; raises Unavailable, which never quotes the address or an answer.

    Both may hold a secret, and what this raises is shown on a page.
    """
    address = parse_url(url)
    headers = {"Content-Type": "application/json"}
    if address.auth:
        headers |= make_headers(basic_auth=address.auth)
    with urllib3.PoolManager(retries=False) as pool:
        try:
            answer = pool.request(
                "POST",
                address._replace(auth=None).url,
                body=checkpoint.line.encode("ascii"),
                headers=headers,
                timeout=Timeout(total=LONGEST_SECONDS),
                redirect=False,
                # Its status says all: nothing that it sends is read.
                preload_content=False,
            )
        except HTTPError as error:
            why = type(error).__name__
            raise Unavailable(f"the checkpoint URL does not answer ({why})") from error
        answer.close()
    if answer.status >= FIRST_REFUSAL:
        raise Unavailable(f"the checkpoint URL answers with status {answer.status}")
