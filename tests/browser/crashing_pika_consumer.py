"""A newcomer's consumer that crashes on a payment without a currency until fixed."""

from __future__ import annotations

import json
import sys

import pika


def main(url: str, *, mended: bool) -> None:
    """Handle one message and print it; an exception ends the process."""
    channel = pika.BlockingConnection(pika.URLParameters(url)).channel()
    for method, properties, body in channel.consume("payments", inactivity_timeout=60):
        if method is None:
            sys.exit("nothing came")
        payment = json.loads(body)
        currency = payment.get("currency", "EUR") if mended else payment["currency"]
        channel.basic_ack(method.delivery_tag)
        handled = {
            "body": body.decode(),
            "headers": properties.headers,
            "paid": currency,
        }
        sys.stdout.write(json.dumps(handled, default=str))
        return


if __name__ == "__main__":
    main(sys.argv[1], mended="mended" in sys.argv)
