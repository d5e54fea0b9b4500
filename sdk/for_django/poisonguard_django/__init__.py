"""The outbox of poisonguard in a Django project.

    INSTALLED_APPS = [..., "poisonguard_django"]
    POISONGUARD_OUTBOX = {"producer": "shop"}

    with transaction.atomic():
        order.save()
        outbox().put("orders", order.to_json())

`migrate` creates the tables.
"""

from __future__ import annotations

from poisonguard_django.configured_outbox import outbox

__all__ = ["outbox"]
