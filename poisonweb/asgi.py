"""The web server's door: `uvicorn poisonweb.asgi:application`."""

from __future__ import annotations

import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "poisonweb.settings")
application = get_asgi_application()
