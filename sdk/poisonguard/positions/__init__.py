"""How far a subscription has read, and the calls that store that in Poisonweb."""

from __future__ import annotations
