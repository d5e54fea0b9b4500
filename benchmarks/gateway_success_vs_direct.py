"""Calls that succeed at the first try: through the gateway, and straight.

One client, the gateway's own, makes both, one call at a time and in turn, to the same
back end, a process of its own that answers at once. The gateway runs as in operation.
Target: the median through the gateway is at most 3 times the direct one.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time

from benchmarks._benchmark_harness import api_key, product
from benchmarks.gateway_accept_vs_insert import gateway
from benchmarks.redelivery_sender_vs_bare_client import back_end, make_endpoint
from poisonweb.embedded.free_ports import LOOPBACK

NUMBER = int(os.environ.get("NUMBER", "3000"))
WARM_UP = 200
BODY = b"<quote>IBM</quote>" * 10


def main() -> None:
    """Print the median times of calls by the gateway and directly; their ratio, too."""
    os.environ["POISONWEB_ENDPOINT_HOSTS"] = LOOPBACK
    with product(durable=True), back_end() as url:
        name, key = make_endpoint("stock-quote", url, 10).name, api_key()
        with gateway() as port:
            asyncio.run(compare(url, f"http://{LOOPBACK}:{port}/gateway/{name}", key))


async def compare(direct: str, through: str, key: str) -> None:
    """Call a back end by the gateway and directly, in turn; print median times, ratio.

    Raises AssertionError at an answer other than 200.
    """
    from apps.redelivery.outbound.http_caller import EndpointRequest, HttpCaller
    from apps.redelivery.outbound.target_url import EndpointTarget

    async def seconds(url: str) -> float:
        target = EndpointTarget.parse(url)
        request = EndpointRequest(
            method=b"POST",
            target=target,
            path=target.url_path(b"/ok"),
            headers=[
                (b"Content-Type", b"text/xml"),
                (b"X-Poisonweb-Key", key.encode()),
            ],
            body=BODY,
        )
        began = time.perf_counter()
        async with caller.call(request, seconds=10) as answer:
            await answer.read(2**16)
            if answer.status != 200:
                raise AssertionError(answer.status)
        return time.perf_counter() - began

    async with HttpCaller() as caller:
        pairs = [
            (await seconds(direct), await seconds(through))
            for _ in range(WARM_UP + NUMBER)
        ][WARM_UP:]
    theirs, ours = (
        statistics.median(each) * 1_000 for each in zip(*pairs, strict=True)
    )
    print(
        f"p50 through the gateway: {ours:.2f} ms, direct: {theirs:.2f} ms,"
        f" ratio {ours / theirs:.2f}"
    )


if __name__ == "__main__":
    main()
