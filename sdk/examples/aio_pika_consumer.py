"""Consume a queue of RabbitMQ with aio-pika, until SIGTERM: its name is the argument.

    pip install ./sdk[aio-pika]
    export AMQP_URL=amqp://guest:guest@localhost/
    export POISONGUARD_URL=https://key@poisonweb.example.com
    export POISONGUARD_TOPIC=orders POISONGUARD_CONSUMER_GROUP=billing
    python sdk/examples/aio_pika_consumer.py orders

The topic is the name of the queue. Have producers set `message_id`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys

import aio_pika
from aio_pika.abc import AbstractIncomingMessage

from poisonguard import Guard, RetryPolicy
from poisonguard.readers.aio_pika import AioPikaReader

AT_ONCE = 64  # as many as the guard handles side by side

log = logging.getLogger("orders")


async def charge(message: AbstractIncomingMessage) -> None:
    order = json.loads(message.body)
    log.info("charged %s for order %s", order["total"], order["id"])


async def consume(url: str, name: str) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    guard = Guard(
        reader=AioPikaReader(),
        policy=RetryPolicy(fatal=(ValueError, KeyError)),
        concurrency=AT_ONCE,
    )

    async def on_message(message: AbstractIncomingMessage) -> None:
        outcome = await guard.handle_async(message, charge)
        if outcome.settles:
            await message.ack()
        else:  # it comes again at once
            await message.nack(requeue=True)

    async with await aio_pika.connect_robust(url) as connection:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=AT_ONCE)
        queue = await channel.get_queue(name)
        async with guard:
            tag = await queue.consume(on_message)
            await stop.wait()
            await queue.cancel(tag)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    asyncio.run(consume(os.environ["AMQP_URL"], sys.argv[1]))
