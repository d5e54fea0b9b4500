"""Static files under hashed names, that browsers keep for ever."""

from __future__ import annotations

from whitenoise.storage import CompressedManifestStaticFilesStorage


class Collected(CompressedManifestStaticFilesStorage):
    """Hashed names once `prepare` has collected the files, their own until then.

    So `migrate` and `runserver` are enough to look at the product.
    """

    def stored_name(self, name: str) -> str:
        return str(super().stored_name(name)) if self.hashed_files else name
