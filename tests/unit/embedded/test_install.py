from __future__ import annotations

from pathlib import Path

import pytest

from poisonweb.embedded import install


def test_tells_how_much_room_is_missing_and_where(tmp_path: Path) -> None:
    missing = rf"disk of {tmp_path} has \d+ MiB left, .* needs 1000000000 MiB there: "

    with pytest.raises(install.Unable, match=missing):
        install._check_room(tmp_path, 10**9)


def test_a_machine_that_can_run_the_servers_passes() -> None:
    install._check_machine()


def test_another_content_of_a_file_is_another_digest(tmp_path: Path) -> None:
    pins = tmp_path / "requirements.txt"
    pins.write_text("a==1")
    before = install._digest(pins)

    pins.write_text("a==2")

    assert install._digest(pins) != before


@pytest.mark.parametrize("file", [*install.FILES["dev"], *install.ALWAYS])
def test_pins_name_hashes_and_no_place(file: Path) -> None:
    text = file.read_text()
    pins = [line for line in text.splitlines() if line and not line.startswith(" ")]

    assert pins
    assert all("==" in pin and pin.endswith("\\") for pin in pins)
    assert not any(word in text for word in ("://", "--index", "--find-links", " @ "))
