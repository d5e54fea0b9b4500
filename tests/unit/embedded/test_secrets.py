from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from poisonweb.embedded.secrets import secret, write_private


def test_a_secret_stays_what_it_was(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "key"

    assert secret(path) == secret(path)
    assert len(secret(path)) >= 40


def test_only_the_owner_may_read_a_secret(tmp_path: Path) -> None:
    secret(tmp_path / "key")

    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600


def test_two_who_ask_together_get_the_same_secret(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        secrets = set(pool.map(secret, [tmp_path / "key"] * 50))

    assert len(secrets) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["key"]


def test_a_private_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("open to all")
    path.chmod(0o644)

    write_private(path, "hidden")

    assert (path.read_text(), path.stat().st_mode & 0o777) == ("hidden", 0o600)
