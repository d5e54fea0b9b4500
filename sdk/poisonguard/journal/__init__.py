"""The journal of messages in flight, and the record of failed attempts."""

from __future__ import annotations
