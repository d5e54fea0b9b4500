"""Send a checkpoint over HTTP to a URL of the operator's."""

from __future__ import annotations

import urllib3
from urllib3.exceptions import HTTPError
from urllib3.util import Timeout, make_headers, parse_url

from apps.audit.checkpoints import Checkpoint
from apps.core.errors import Unavailable

LONGEST_SECONDS = 8.0
FIRST_REFUSAL = 300


def post(checkpoint: Checkpoint, *, url: str) -> None:
    """POST a checkpoint's line to a URL; raises Unavailable.

    Its text never quotes the URL or the response: both may hold a secret, and a page
    shows the text.
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
                # The status is enough: the body is not read.
                preload_content=False,
            )
        except HTTPError as error:
            why = type(error).__name__
            raise Unavailable(f"the checkpoint URL does not answer ({why})") from error
        answer.close()
    if answer.status >= FIRST_REFUSAL:
        raise Unavailable(f"the checkpoint URL answers with status {answer.status}")
