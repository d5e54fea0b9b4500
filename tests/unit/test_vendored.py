"""What we ship of others is what they published, and comes with its licence."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path

STATIC = Path(__file__).parents[2] / "static"
VENDOR = STATIC / "vendor"
FIRST_LOAD_LIMIT = 40_000


def test_every_vendored_file_has_the_published_bytes_and_a_licence() -> None:
    lines = (VENDOR / "SHA256SUMS").read_text().splitlines()
    listed = {name: digest for digest, name in map(str.split, lines)}

    digests = {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in VENDOR.glob("*.js")
    }

    assert digests == listed
    assert "Zero-Clause BSD" in (VENDOR / "htmx-LICENSE").read_text()


def test_the_first_load_stays_small() -> None:
    files = [*STATIC.rglob("*.js"), *STATIC.rglob("*.css")]

    size = sum(len(gzip.compress(file.read_bytes())) for file in files)

    assert size <= FIRST_LOAD_LIMIT
