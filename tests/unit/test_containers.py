"""The images and compose.yaml: nobody builds them here, but they can be read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from poisonweb.env import KNOWN

ROOT = Path(__file__).resolve().parents[2]
FILES = ("Dockerfile", "compose.yaml")
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {"prepare", "web", "worker", "beat", "lanes", "reports"}
# What the images and their commands bring of their own.
OTHERS = {
    *("DATABASE_URL", "CELERY_BROKER_URL", "HOSTNAME", "PATH", "PYTHONPATH"),
    *("PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"),
    *("POSTGRES_USER", "POSTGRES_DB", "POSTGRES_PASSWORD"),
}


def test_every_setting_is_one() -> None:
    text = "".join((ROOT / file).read_text() for file in FILES)
    assigned = re.findall(r"\b([A-Z][A-Z_]{3,})(?==|:)", text)
    used = re.findall(r"\$\{?([A-Z][A-Z_]{3,})", text)

    unknown = {*assigned, *used} - KNOWN - OTHERS - {"FROM", "HEALTHCHECK"}

    assert unknown == set()


def test_every_process_of_the_product_has_a_service() -> None:
    assert set(SERVICES) == OURS | {"postgres", "redis"}


@pytest.mark.parametrize("name", sorted(OURS - {"prepare"}))
def test_nothing_starts_before_all_is_prepared(name: str) -> None:
    waits = SERVICES[name]["depends_on"]

    assert waits["prepare"]["condition"] == "service_completed_successfully"
    assert waits["redis"]["condition"] == "service_healthy"


def test_ports_are_published_on_the_loopback_interface_only() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]

    assert ports == ["127.0.0.1:8000:8000"]


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_secrets_come_from_outside(name: str) -> None:
    told = {
        variable: value
        for variable, value in SERVICES[name].get("environment", {}).items()
        if re.search("PASSWORD|SECRET|DATABASE", variable)
    }

    assert told or name == "redis"
    assert all(re.search(r"\$\{\w+:\?", value) for value in told.values())


def test_the_images_run_as_nobody_special_and_without_what_built_them() -> None:
    stages = (ROOT / "Dockerfile").read_text().split("\nFROM ")[1:]
    named = {stage.split("\n")[0].split(" AS ")[1]: stage for stage in stages}

    assert "USER 10001" in named["tree"]
    for image in ("product", "reports"):
        assert named[image].startswith("tree AS ")
        assert not re.search(r"^(RUN|USER)\b", named[image], flags=re.MULTILINE)
    assert "/healthz" in named["product"]


def test_both_images_hold_the_clients_of_every_kind_of_broker() -> None:
    _, packages, of_reports = (ROOT / "Dockerfile").read_text().split("\nFROM ")[:3]

    assert "COPY apps/brokers/requirements /tmp/brokers/" in packages
    assert "for pins in /tmp/brokers/*.txt" in packages
    assert of_reports.startswith("packages AS packages-of-reports")
    assert "BROKERS" not in (ROOT / "compose.yaml").read_text()


def test_no_image_holds_a_secret_or_data() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    let_in = {line[1:] for line in ignored if line.startswith("!")}

    assert "*" in ignored
    assert {".env", "var", ".venv", ".git", "tests"}.isdisjoint(let_in)
    assert all((ROOT / name).exists() for name in let_in)
