"""The images and compose.yaml: they are not built here, but these tests read them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from poisonweb.env import KNOWN, load

ROOT = Path(__file__).resolve().parents[2]
FILES = ("Dockerfile", "compose.yaml")
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {
    "prepare",
    "web",
    "worker",
    "beat",
    "lanes",
    "gateway",
    "sender",
    "sweeper",
    "reports",
}
# What the images and their commands bring of their own.
OTHERS = {
    *("DATABASE_URL", "CELERY_BROKER_URL", "HOSTNAME", "PATH", "PYTHONPATH"),
    *("PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"),
    *("POSTGRES_USER", "POSTGRES_DB", "POSTGRES_PASSWORD"),
    *("REDIS_PASSWORD", "REDISCLI_AUTH", "FORWARDED_ALLOW_IPS", "SPARK_MASTER"),
}
# Settings that a file beside compose.yaml does not set, and why.
NOT_HANDED_ON = {
    "DATABASE_URL": "made of the passwords in .env",
    "CELERY_BROKER_URL": "made of the password in .env",
    "JAVA_HOME": "the image of the reports has a Java",
    "PORT": "of `make run` alone",
    "GATEWAY_PORT": "of `make run` alone",
    "POISONWEB_APPLICATION_ROLE": "that of DATABASE_URL",
    "POISONWEB_DEMO": "there is no sample: no service would be its consumers",
    "POISONWEB_REDIS_URL": "of the sample",
    "POISONWEB_VAR": "the image's, on a volume",
}
NO_SECRET = "${POISONWEB_OIDC_CLIENT_SECRET:-}"
OF_PREPARE = {"POISONWEB_ADMIN_PASSWORD", "POISONWEB_APPLICATION_PASSWORD"}
OF_REPORTS = {"SPARK_MASTER"}
WRITABLE = {
    "postgres": {"/tmp", "/var/run/postgresql", "/var/lib/postgresql"},
    "redis": {"/tmp", "/data"},
    **{name: {"/tmp", "/var/lib/poisonweb"} for name in OURS},
}


def environment(service: str) -> dict[str, str]:
    return dict(SERVICES[service].get("environment", {}))


def handed_on(service: str) -> set[str]:
    """Name the settings that get their value from outside, under their own name."""
    return {
        name
        for name, value in environment(service).items()
        if re.match(rf"\$\{{{name}(:[-?].*)?\}}$", value)
    }


def settings_of_the_readme() -> set[str]:
    section = (ROOT / "README.md").read_text().split("## Settings")[1].split("\n## ")[0]
    cells = re.findall(
        r"^\| (`[A-Z_]+`(?:, `[A-Z_]+`)*) \|", section, flags=re.MULTILINE
    )
    return {name for cell in cells for name in re.findall("[A-Z_]+", cell)}


def test_services_get_every_setting_of_the_readme_but_for_listed_ones() -> None:
    settings = settings_of_the_readme()

    by_service = {name: handed_on(name) for name in OURS}

    assert settings > KNOWN
    assert set(NOT_HANDED_ON) <= settings
    assert set().union(*by_service.values()) & settings == settings - set(NOT_HANDED_ON)
    for_all = settings - set(NOT_HANDED_ON) - OF_PREPARE - OF_REPORTS
    assert {
        name: for_all - each for name, each in by_service.items() if for_all - each
    } == {}


def test_settings_missing_in_the_env_file_have_the_products_defaults() -> None:
    bare = {
        name: re.sub(r"\$\{\w+:-(.*?)\}", r"\1", value)
        for name, value in environment("web").items()
        if name in KNOWN and ":?" not in value
    }

    loaded, default = load(bare), load({"POISONWEB_DEMO": "0", "POISONWEB_SECURE": "1"})

    assert loaded == default


def test_pages_are_served_for_a_proxy_that_speaks_tls() -> None:
    assert environment("web")["POISONWEB_SECURE"] == "${POISONWEB_SECURE:-1}"


def test_the_web_does_not_start_without_forwarded_allow_ips() -> None:
    named = environment("web")["FORWARDED_ALLOW_IPS"]
    head = (ROOT / "compose.yaml").read_text().partition("name: poisonweb")[0]

    # Its usual value trusts the container alone: then all people share one address.
    assert re.fullmatch(r"\$\{FORWARDED_ALLOW_IPS:\?write [^}]+\}", named)
    assert "echo FORWARDED_ALLOW_IPS=172.16.0.0/12" in head


def test_the_owner_of_the_tables_is_known_to_prepare_alone() -> None:
    urls = {name: environment(name)["DATABASE_URL"] for name in OURS}
    users = {name: re.split("[/:]+", url)[1] for name, url in urls.items()}
    owner = environment("postgres")["POSTGRES_USER"]
    role = environment("prepare")["POISONWEB_APPLICATION_ROLE"]

    assert users.pop("prepare") == owner
    assert set(users.values()) == {role}
    assert role != owner
    services = {name for name in OURS if "POSTGRES_PASSWORD" in str(environment(name))}
    assert services == {"prepare"}


def test_redis_asks_for_a_password_that_the_others_have() -> None:
    secret = "${REDIS_PASSWORD:?write it into .env}"

    config = COMPOSE["configs"]["redis"]["content"]

    assert f"requirepass {secret}\n" in config
    assert SERVICES["redis"]["command"] == ["redis-server", "/etc/redis.conf"]
    assert SERVICES["redis"]["configs"] == [
        {"source": "redis", "target": "/etc/redis.conf"}
    ]
    assert all(f"//:{secret}@" in environment(n)["CELERY_BROKER_URL"] for n in OURS)


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_every_service_is_confined(name: str) -> None:
    service = SERVICES[name]

    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "cap_add" not in service
    assert "privileged" not in service
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert re.fullmatch(r"\d+[mg]", service["mem_limit"])
    assert 0 < service["pids_limit"] <= 1024
    # The images of others would begin as root; ours say who they are.
    assert ("user" in service) is (name not in OURS)


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_a_service_can_write_to_what_it_needs_and_no_further(name: str) -> None:
    volumes = {place.split(":")[1] for place in SERVICES[name].get("volumes", [])}
    mounts = SERVICES[name].get("tmpfs", [])

    assert volumes | {mount.split(":")[0] for mount in mounts} == WRITABLE[name]
    assert all("size=" in mount for mount in mounts)


def test_every_volume_is_declared() -> None:
    used = {
        place.split(":")[0]
        for service in SERVICES.values()
        for place in service.get("volumes", [])
    }

    assert used == set(COMPOSE["volumes"])


@pytest.mark.parametrize("name", sorted(set(SERVICES) - OURS))
def test_images_of_others_are_pinned_by_version(name: str) -> None:
    assert re.search(r":\d+\.\d+(\.\d+)?$", SERVICES[name]["image"])


def test_the_instructions_create_every_required_secret() -> None:
    text = (ROOT / "compose.yaml").read_text()
    head = text.split("\nname:")[0].replace("\\\n#", "")
    loop = re.search(r"for name in ([A-Z_ ]+);", head)

    assert loop
    assert {*loop[1].split(), "FORWARDED_ALLOW_IPS"} == set(
        re.findall(r"\$\{(\w+):\?", text)
    )


def test_settings_in_images_and_compose_are_read_by_the_product() -> None:
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

    assert ports == ["127.0.0.1:8000:8000", "127.0.0.1:8001:8001"]


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_secrets_come_from_outside(name: str) -> None:
    values = {
        variable: value
        for variable, value in SERVICES[name].get("environment", {}).items()
        if re.search("PASSWORD|SECRET|DATABASE|CELERY|AUTH$", variable)
    }

    assert values
    # Who has no provider for single sign-on has no secret of one.
    optional = values.pop("POISONWEB_OIDC_CLIENT_SECRET", NO_SECRET)
    assert optional == NO_SECRET
    assert all(re.search(r"\$\{\w+:\?", value) for value in values.values())


def test_the_images_run_as_an_ordinary_user_and_contain_no_build_tools() -> None:
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
    assert not re.search(r"\bBROKERS\b", (ROOT / "compose.yaml").read_text())


def test_no_image_holds_a_secret_or_data() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    let_in = {line[1:] for line in ignored if line.startswith("!")}

    assert "*" in ignored
    assert {".env", "var", ".venv", ".git", "tests"}.isdisjoint(let_in)
    assert "apps" in let_in
    assert all((ROOT / name).exists() for name in let_in)
