"""Endpoints, their deliveries, and the attempts of these."""

from __future__ import annotations

from apps.redelivery.models.deliveries import Attempt, Delivery, DeliveryBody
from apps.redelivery.models.delivery_operation_items import DeliveryHold, DeliveryItem
from apps.redelivery.models.endpoints import CallCount, Endpoint, EndpointActivity

__all__ = [
    "Attempt",
    "CallCount",
    "Delivery",
    "DeliveryBody",
    "DeliveryHold",
    "DeliveryItem",
    "Endpoint",
    "EndpointActivity",
]
