from __future__ import annotations

from pathlib import Path

import pytest

from poisonweb import env
from poisonweb.embedded import process_plan
from poisonweb.embedded.errors import CannotStart
from poisonweb.embedded.free_ports import free_port
from poisonweb.embedded.process_plan import Plan

DATABASE = {"DATABASE_URL": "postgresql://p@db.example/p"}
BROKER = {"CELERY_BROKER_URL": "amqp://broker.example"}
OURS = ["web", "worker", "beat", "lanes", "gateway", "sender", "sweeper", "reports"]
MESSAGES = {"POISONWEB_REDIS_URL": "redis://messages.example/0"}


def planned(var: Path, *environs: dict[str, str]) -> Plan:
    environ = {"POISONWEB_VAR": str(var)}
    for some in environs:
        environ |= some
    return process_plan.make(env.load(environ), port=8000, environ=environ)


def names(installation: Plan) -> list[str]:
    return [
        program.name for program in (*installation.servers, *installation.processes)
    ]


def test_starts_everything_when_nothing_is_given(tmp_path: Path) -> None:
    installation = planned(tmp_path)

    servers, sample = ["postgres", "redis"], ["sample", "shipping", "history"]
    assert names(installation) == [*servers, *OURS, *sample]
    assert installation.addresses.redis_url != installation.addresses.celery_broker_url


def test_chooses_the_port_of_postgres_when_its_database_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data_exists: list[bool] = []

    def choose() -> int:
        data_exists.append((tmp_path / "postgres" / "data").exists())
        return free_port()

    monkeypatch.setattr(process_plan, "free_port", choose)
    planned(tmp_path)

    assert data_exists == [True, True]


def test_starts_no_server_that_is_given(tmp_path: Path) -> None:
    installation = planned(tmp_path, DATABASE, BROKER)

    assert names(installation) == OURS
    assert installation.addresses.environment() == DATABASE | BROKER


def test_the_shop_of_the_sample_is_beside_an_embedded_database_only(
    tmp_path: Path,
) -> None:
    ours = planned(tmp_path)
    demo = {"POISONWEB_DEMO": "1"}
    yours = planned(tmp_path, DATABASE, demo)

    addresses = [
        {each.environment.get("BROKER_SAMPLE_SHOP") for each in plan.processes}
        for plan in (ours, yours)
    ]
    assert addresses == [{ours.addresses.shop_url}, {None}]
    assert "/sample_shop?sslmode=disable" in str(ours.addresses.shop_url)


def test_runs_no_sample_on_a_database_of_yours_unasked(tmp_path: Path) -> None:
    demo = {"POISONWEB_DEMO": "1"}

    unasked = planned(tmp_path, DATABASE)
    wished = planned(tmp_path, DATABASE, demo)
    beside_yours = planned(tmp_path, DATABASE, BROKER, MESSAGES, demo)

    sample = {"sample", "shipping", "history"}
    assert sample.isdisjoint(names(unasked))
    assert sample <= set(names(wished)) & set(names(beside_yours))


def test_tells_every_process_whether_the_sample_runs(tmp_path: Path) -> None:
    installation = planned(tmp_path, DATABASE)

    demos = {
        program.environment["POISONWEB_DEMO"] for program in installation.processes
    }
    assert demos == {"0"}


def test_a_sample_without_a_message_broker_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CannotStart, match="POISONWEB_REDIS_URL"):
        planned(tmp_path, DATABASE, BROKER, {"POISONWEB_DEMO": "1"})


def test_only_the_history_has_an_end(tmp_path: Path) -> None:
    installation = planned(tmp_path)

    assert [program.name for program in installation.processes if program.once] == [
        "history"
    ]


def test_the_consumers_of_the_sample_keep_their_journals_in_var(tmp_path: Path) -> None:
    programs = {program.name: program for program in planned(tmp_path).processes}

    journals = {
        programs[name].environment["POISONGUARD_JOURNAL"]
        for name in ("sample", "shipping")
    }
    assert journals == {str(tmp_path / "sample-journal")}


def test_each_worker_has_a_queue_and_a_name_of_its_own(tmp_path: Path) -> None:
    programs = {program.name: program for program in planned(tmp_path).processes}
    worker, reports = (
        " ".join(programs[name].command) for name in ("worker", "reports")
    )

    assert "--queues poisonweb --hostname poisonweb@%h --concurrency 2" in worker
    assert "--queues reports --hostname reports@%h --concurrency 1" in reports


def test_the_web_server_listens_on_the_loopback_interface(tmp_path: Path) -> None:
    web = planned(tmp_path, DATABASE, BROKER).processes[0]

    assert " ".join(web.command).count("--host 127.0.0.1 --port 8000") == 1
