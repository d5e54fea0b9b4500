"""How a message of an endpoint's topic says which request it is.

A delivery that is given up becomes a poison with these headers, so that a requeue can
make the same request again.
"""

from __future__ import annotations

from poisonguard.contract import REDRIVE_HEADER

METHOD = b"x-poisonweb-method"
PATH = b"x-poisonweb-path"
DELIVERY = b"x-poisonweb-delivery"
IDEMPOTENCY_KEY = b"x-poisonweb-idempotency-key"
REDRIVE = REDRIVE_HEADER.encode()
OURS = frozenset({METHOD, PATH, DELIVERY, IDEMPOTENCY_KEY})
