"""Redrive from Postgres to Redis Streams, durable and confirmed, against bare XADDs.

Target: at least 0.4 of XADDs in pipelines of the same window, on the same server.
"""

from __future__ import annotations

import os

from benchmarks._bench import ROUNDS, compare, product

NUMBER = 5_000
WINDOW = 200


def main() -> None:
    import redis

    from benchmarks import _redrives as redrives

    url = os.environ["POISONWEB_REDIS_URL"]
    topic = redrives.topic_on(kind="redis_streams", url=url, queue="orders")
    operations = [
        redrives.queue_redrive(topic, number=NUMBER) for _ in range(ROUNDS + 1)
    ]
    body = os.urandom(1024)
    client = redis.Redis.from_url(url)

    def xadd() -> None:
        for _ in range(0, NUMBER, WINDOW):
            pipeline = client.pipeline(transaction=False)
            for _ in range(WINDOW):
                pipeline.xadd("bare", {"body": body, "trace": b"1"})
            pipeline.execute()

    compare(
        "redrive",
        number=NUMBER,
        ours=redrives.redrive_next_of(operations),
        baseline=xadd,
        named="pipelined XADD",
    )


if __name__ == "__main__":
    with product():
        main()
