"""Requests that failed are kept, and tried again on a plan."""

from __future__ import annotations

from importlib import import_module

from django.apps import AppConfig


class RedeliveryConfig(AppConfig):
    name = "apps.redelivery"
    label = "redelivery"

    def ready(self) -> None:
        """Register deliveries with operations, requeues and lanes.

        Operations act on deliveries, messages of endpoints' topics are requeued as
        deliveries, and lanes store requests as such.
        """
        topics_without_broker = import_module(
            "apps.brokers.senders_of_topics_without_broker"
        )
        requeues = import_module(
            "apps.redelivery.services.deliveries_from_requeued_messages"
        )
        topics_without_broker.register_sender(requeues.SENDER)
        request_messages = import_module("apps.capture.intake.requests_from_messages")
        acceptance = import_module("apps.redelivery.topic_requests.delivery_creation")
        request_messages.register(acceptance.store_requests)
        item_kinds = import_module("apps.triage.item_kinds")
        delivery_items = import_module("apps.redelivery.services.delivery_items")
        item_kinds.register(delivery_items.DELIVERIES)
