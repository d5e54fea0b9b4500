from __future__ import annotations

import re
from pathlib import Path

import pytest

from apps.brokers import adapters
from poisonweb.embedded import set_up_venv
from poisonweb.embedded.set_up_venv import VenvTarget


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[VenvTarget]:
    """Set up in a folder of its own, where nothing is fetched; give what would be."""
    targets: list[VenvTarget] = []
    monkeypatch.setattr(set_up_venv, "VENV", tmp_path / ".venv")
    (tmp_path / ".venv").mkdir()
    set_up_venv._write_stamps(set_up_venv._digest())
    for name in ("_check_room", "_check_disks", "_uv"):
        monkeypatch.setattr(set_up_venv, name, lambda *_: Path("uv"))
    monkeypatch.setattr(set_up_venv, "_sync", lambda _, target: targets.append(target))
    return targets


def test_run_installs_the_client_of_every_kind_of_broker(
    installed: list[VenvTarget],
) -> None:
    codes = [set_up_venv.main([]) for _ in "ab"]

    assert codes == [0, 0]
    (target,) = installed
    assert target.name == "run"
    assert set(set_up_venv.CLIENTS.values()) <= set(target.files)


def test_naming_brokers_still_works_and_installs_nothing_more(
    installed: list[VenvTarget],
) -> None:
    codes = [
        set_up_venv.main(words) for words in ([], ["rabbitmq"], ["rabbitmq", "sqs"])
    ]

    assert codes == [0] * 3
    assert [target.name for target in installed] == ["run"]


def test_a_stamp_of_the_release_before_is_replaced_by_one_more_set_up(
    installed: list[VenvTarget],
) -> None:
    before = (set_up_venv._digest(), "0" * 64, "+rabbitmq")
    (set_up_venv.VENV / "stamp").write_text("\n".join(before))

    codes = [set_up_venv.main([]) for _ in "ab"]

    assert codes == [0, 0]
    assert [target.name for target in installed] == ["run"]
    assert "+rabbitmq" not in (set_up_venv.VENV / "stamp").read_text()


def test_run_after_dev_has_nothing_to_install(installed: list[VenvTarget]) -> None:
    for words in (["dev"], [], ["dev"]):
        set_up_venv.main(words)

    assert [target.name for target in installed] == ["dev"]


def test_a_client_that_is_none_is_told_in_one_line(
    installed: list[VenvTarget], capsys: pytest.CaptureFixture[str]
) -> None:
    code = set_up_venv.main(["rabbitmq", "kafka"])

    message = capsys.readouterr().err
    assert (code, installed) == (1, [])
    assert message.startswith(
        "poisonweb: BROKERS: kafka is no broker with a client of "
    )
    assert message.count("\n") == 1


def test_each_client_is_of_a_kind_of_broker() -> None:
    assert set_up_venv.CLIENTS.keys() <= adapters.KINDS.keys()


def test_a_client_is_pinned_to_one_version_in_all_files() -> None:
    ours = {name for file in set_up_venv.CLIENTS.values() for name, _ in _pins_of(file)}
    pins = {pin for file in set_up_venv.DEV for pin in _pins_of(file) if pin[0] in ours}

    assert {"pika", "boto3"} <= ours
    assert len(pins) == len(ours)


def _pins_of(file: Path) -> list[tuple[str, str]]:
    pin = re.compile(r"^([^\s=\[]+)\S*==(\S+)", re.MULTILINE)
    return pin.findall(file.read_text())


def test_tells_how_much_room_is_missing_and_where(tmp_path: Path) -> None:
    missing = rf"disk of {tmp_path} has \d+ MiB left, .* needs 1000000000 MiB there: "

    with pytest.raises(set_up_venv.SetUpFailed, match=missing):
        set_up_venv._check_room(tmp_path, 10**9)


def test_a_machine_that_can_run_the_servers_passes() -> None:
    set_up_venv._check_machine()


def test_another_content_of_a_file_is_another_digest(tmp_path: Path) -> None:
    pins = tmp_path / "requirements.txt"
    pins.write_text("a==1")
    before = set_up_venv._digest(pins)

    pins.write_text("a==2")

    assert set_up_venv._digest(pins) != before


@pytest.mark.parametrize(
    "file", [*set_up_venv.DEV, *set_up_venv.ALWAYS, *set_up_venv.CLIENTS.values()]
)
def test_pins_name_hashes_and_no_place(file: Path) -> None:
    text = file.read_text()
    pins = [line for line in text.splitlines() if line and not line.startswith(" ")]

    assert pins
    assert all("==" in pin and pin.endswith("\\") for pin in pins)
    assert not any(word in text for word in ("://", "--index", "--find-links", " @ "))
