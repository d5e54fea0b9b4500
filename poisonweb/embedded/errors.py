from __future__ import annotations


class CannotStart(Exception):
    """The embedded mode cannot start; the message is one line that says what to do."""
