"""What can happen to a topic while somebody is at work with it."""

from __future__ import annotations

from apps.core.errors import Unavailable


class Removed(Unavailable):
    """A topic was removed just now; ask again, and what is told of it makes it anew."""
