"""What starts by the dozen does not load what only the sign-in needs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OF_THE_SIGN_IN = ("fido2", "qrcode", "jwt", "apps.team.openid")
START = f"""
import sys
from poisonweb.celery import app
app.loader.import_default_modules()
assert "apps.capture.tasks" in sys.modules
print(*(name for name in {OF_THE_SIGN_IN} if name in sys.modules))
"""


def test_a_worker_loads_no_part_of_the_sign_in(tmp_path: Path) -> None:
    environment = {
        **{name: value for name, value in os.environ.items() if "POISON" not in name},
        "DJANGO_SETTINGS_MODULE": "poisonweb.settings",
        "DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none",
        "CELERY_BROKER_URL": "redis://127.0.0.1:1/0",
        "POISONWEB_SECRET_KEY": "check",
        "POISONWEB_VAR": str(tmp_path),
    }

    said = subprocess.check_output(
        [sys.executable, "-c", START], cwd=ROOT, env=environment, text=True
    )

    assert said.split() == []
