"""What a process was working on when it died, and how often each message was tried."""

from __future__ import annotations
