"""One failure a request, over HTTP, against a view that inserts one row and commits.

Both are views of one web process on a durable Postgres as `make run` has it, and one
client asks both in turn. Target: at most 3 times the view. A failure of a message that
is known already is measured, too.
"""

from __future__ import annotations

import json
import os
import statistics
from functools import partial
from typing import Any

import urllib3

from benchmarks._benchmark_harness import api_key, p99, product, seconds, web

NUMBER = int(os.environ.get("NUMBER", "300"))
WARM_UP = 30
CAPTURE = "api/v1/failures"


def main(url: str, key: str) -> None:
    """Time single failure reports and posts to a bare view in turn; print ratios."""
    from benchmarks import _failures_to_capture as captures
    from benchmarks._bare_insert_view_urls import LEAST

    pool = urllib3.PoolManager(headers={"Authorization": f"Bearer {key}"})

    def post(path: str, body: bytes) -> None:
        answer = pool.request("POST", f"{url}/{path}", body=body, headers=headers)
        if answer.status != 200 or b'"rejected"' in answer.data:
            raise AssertionError(answer.data)

    headers = {**pool.headers, "Content-Type": "application/json"}
    captures.capture(captures.reports(captures.PROBLEMS), captures.topic())
    took: dict[str, list[float]] = {"least": [], "first": [], "again": []}
    for turn in range(WARM_UP + NUMBER):
        report, other = captures.reports(2)
        first = _body(report.to_wire())
        again = _body({**report.to_wire(), "report_id": str(other.report_id)})
        requests = {
            "least": partial(post, LEAST, first),
            "first": partial(post, CAPTURE, first),
            "again": partial(post, CAPTURE, again),
        }
        for name, request in requests.items():
            time = seconds(request)
            if turn >= WARM_UP:
                took[name].append(time)
    least = took["least"]
    for name, each in took.items():
        middle, slowest = statistics.median(each), p99(each)
        print(
            f"{name}: p50 {middle * 1000:.1f} ms, p99 {slowest * 1000:.1f} ms", end=""
        )
        print(f", ratio of p50 {middle / statistics.median(least):.2f}", end="")
        print(f", of p99 {slowest / p99(least):.2f}")


def _body(report: dict[str, Any]) -> bytes:
    """Return the body of a request with one failure report."""
    return json.dumps({"failures": [report]}).encode()


if __name__ == "__main__":
    with product(durable=True):
        from django.db import connection

        from benchmarks._bare_insert_view_urls import TABLE

        with connection.cursor() as cursor:
            cursor.execute(TABLE)
        with web("benchmarks._product_settings_with_least_view") as address:
            main(address, api_key())
