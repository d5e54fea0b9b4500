"""The project package: settings, entry points, and the embedded mode."""

from __future__ import annotations

import atexit
import gc
import sys
from pathlib import Path

# The SDK is a package of its own; if it is not installed, import it from the tree.
sys.path.append(str(Path(__file__).resolve().parents[1] / "sdk"))

# Importing Django's settings imports this package, so every process enqueues to our
# Celery application and none to Celery's default one.
from poisonweb.celery import app as celery_app

# The last garbage collection took ten times as long as the rest of a program's exit;
# the kernel frees the memory anyway.
atexit.register(gc.freeze)

__all__ = ["celery_app"]
