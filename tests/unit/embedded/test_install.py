from __future__ import annotations

import re
from pathlib import Path

import pytest

from apps.brokers import adapters
from poisonweb.embedded import install
from poisonweb.embedded.install import Wish


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Wish]:
    """Set up in a folder of its own, where nothing is fetched; give what would be."""
    wishes: list[Wish] = []
    monkeypatch.setattr(install, "VENV", tmp_path / ".venv")
    (tmp_path / ".venv").mkdir()
    install._stamp(install._digest(), extras=())
    for name in ("_check_room", "_check_disks", "_uv"):
        monkeypatch.setattr(install, name, lambda *_: Path("uv"))
    monkeypatch.setattr(install, "_sync", lambda _, wish: wishes.append(wish))
    return wishes


def test_the_wish_for_a_client_is_kept_at_later_runs(installed: list[Wish]) -> None:
    codes = [install.main(words) for words in (["rabbitmq"], [], ["sqs"], [], [])]

    assert codes == [0] * 5
    assert [sorted(wish.extras) for wish in installed] == [
        ["rabbitmq"],
        ["rabbitmq", "sqs"],
    ]
    assert install.EXTRAS["sqs"] in installed[1].files


def test_who_has_set_up_for_the_tests_has_every_client(installed: list[Wish]) -> None:
    for words in (["dev"], ["sqs"], [], ["dev"]):
        install.main(words)

    assert [wish.name for wish in installed] == ["dev"]
    assert install._remembered() == ["sqs"]


def test_setting_up_for_the_tests_forgets_no_wish(installed: list[Wish]) -> None:
    for words in (["rabbitmq"], ["dev"], []):
        install.main(words)

    assert [wish.name for wish in installed] == ["run", "dev"]
    assert install._remembered() == ["rabbitmq"]


def test_a_client_that_is_none_is_told_in_one_line(
    installed: list[Wish], capsys: pytest.CaptureFixture[str]
) -> None:
    code = install.main(["rabbitmq", "kafka"])

    told = capsys.readouterr().err
    assert (code, installed) == (1, [])
    assert told.startswith("poisonweb: BROKERS: kafka is no broker with a client of ")
    assert told.count("\n") == 1


def test_each_extra_is_a_kind_of_broker_and_is_in_what_the_tests_need() -> None:
    dev = install.DEV[-1].read_text()

    assert install.EXTRAS.keys() <= adapters.KINDS.keys()
    for file in install.EXTRAS.values():
        assert set(re.findall(r"^\S+==\S+", file.read_text(), re.MULTILINE)) <= {
            pin
            for pins in (dev, *(run.read_text() for run in install.RUN))
            for pin in re.findall(r"^\S+==\S+", pins, re.MULTILINE)
        }


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


@pytest.mark.parametrize(
    "file", [*install.DEV, *install.ALWAYS, *install.EXTRAS.values()]
)
def test_pins_name_hashes_and_no_place(file: Path) -> None:
    text = file.read_text()
    pins = [line for line in text.splitlines() if line and not line.startswith(" ")]

    assert pins
    assert all("==" in pin and pin.endswith("\\") for pin in pins)
    assert not any(word in text for word in ("://", "--index", "--find-links", " @ "))
