"""The composition root: settings, doors, and the embedded mode."""

from __future__ import annotations

import atexit
import gc
import sys
from pathlib import Path

# The SDK is a package of its own; where it is not installed, it is read from the tree.
sys.path.append(str(Path(__file__).resolve().parents[1] / "sdk"))

# Whoever imports Django's settings comes by here, so every process enqueues to our
# Celery application and none to Celery's default one.
from poisonweb.celery import app as celery_app

# To search what a program holds for cycles took ten times as long as the rest of its
# end; the kernel takes it all back anyway.
atexit.register(gc.freeze)

__all__ = ["celery_app"]
