"""Static files with hashed names, which browsers cache for ever."""

from __future__ import annotations

# WhiteNoise has no types.
from whitenoise import storage  # type: ignore[import-untyped]


class Collected(storage.CompressedManifestStaticFilesStorage):  # type: ignore[misc]
    """Use hashed names once `prepare` has collected the files, plain ones until then.

    So `migrate` and `runserver` are enough to try the product.
    """

    def stored_name(self, name: str) -> str:
        return str(super().stored_name(name)) if self.hashed_files else name
