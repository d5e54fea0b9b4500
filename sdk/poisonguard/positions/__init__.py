"""The progress of subscriptions, and the calls that store it in Poisonweb."""

from __future__ import annotations
