from __future__ import annotations

from typing import Any

import pytest

from poisonguard import Guard, settings
from poisonguard.errors import Misconfigured
from poisonguard.settings import Options, Settings

NEEDED: Options = {
    "topic": "orders",
    "consumer_group": "billing",
    "url": "http://127.0.0.1:8000",
    "api_key": "pw_test_key",
}


def load(options: Any = None, **environ: str) -> Settings:
    return settings.load({**NEEDED, **(options or {})}, environ)


def test_everything_may_come_from_the_environment() -> None:
    environ = {
        "POISONGUARD_TOPIC": "/sample/bookmarkStore 50 %",
        "POISONGUARD_CONSUMER_GROUP": "billing",
        "POISONGUARD_URL": "https://a.example.com/, https://b.example.com/prefix",
        "POISONGUARD_API_KEY": " pw_key\n",
        "POISONGUARD_WHEN_AWAY": "spool",
        "POISONGUARD_SPOOL": "/var/spool/guard",
        "POISONGUARD_CONCURRENCY": "16",
        "POISONGUARD_HANDLER_TIMEOUT": "1.5",
        "POISONGUARD_VERSION": "",
        "PATH": "/bin",
    }

    loaded = settings.load({}, environ)

    assert loaded.topic == "/sample/bookmarkStore 50 %"
    assert loaded.url == ("https://a.example.com", "https://b.example.com/prefix")
    assert loaded.api_key == "pw_key"
    assert (loaded.when_away, str(loaded.spool)) == ("spool", "/var/spool/guard")
    assert (loaded.concurrency, loaded.handler_timeout, loaded.version) == (
        16,
        1.5,
        None,
    )
    assert loaded.client_name


def test_an_argument_wins_over_the_environment() -> None:
    loaded = load({"topic": "mine"}, POISONGUARD_TOPIC="theirs")

    assert loaded.topic == "mine"


@pytest.mark.parametrize("missing", ["topic", "consumer_group", "url", "api_key"])
def test_a_missing_setting_is_named_with_both_ways_to_give_it(missing: str) -> None:
    arguments = {name: value for name, value in NEEDED.items() if name != missing}

    with pytest.raises(Misconfigured, match=rf"{missing}=\.\.\. or set POISONGUARD_"):
        settings.load(arguments, {})  # type: ignore[arg-type]


def test_an_unknown_name_in_the_environment_is_refused_with_the_one_meant() -> None:
    with pytest.raises(Misconfigured, match="did you mean POISONGUARD_WHEN_AWAY"):
        load(POISONGUARD_WHENAWAY="spool")


def test_variables_of_the_supervisor_and_the_journal_are_accepted() -> None:
    loaded = load(POISONGUARD_SUPERVISOR="7", POISONGUARD_JOURNAL="/dev/shm/journal")

    assert loaded.topic == "orders"


def test_an_unknown_argument_is_refused_with_the_one_meant() -> None:
    with pytest.raises(Misconfigured, match="did you mean visibility"):
        load({"visibilty": 30})


@pytest.mark.parametrize(
    ("setting", "remedy"),
    [
        ({"topic": " "}, "1 to 255 printable"),
        ({"topic": "x" * 256}, "1 to 255 printable"),
        ({"client_name": "a\nb"}, "1 to 255 printable"),
        ({"url": ""}, "give it like https://"),
        ({"url": []}, "an address or several"),
        ({"url": "poisonweb:8000"}, "give it like https://"),
        ({"api_key": ""}, "or a function that does"),
        ({"when_away": "drop"}, "give hold or spool"),
        ({"when_away": "spool"}, "there is no spool: give a folder"),
        ({"when_unloaded": "go"}, "give refuse or start"),
        ({"concurrency": 0}, "1 to 65536"),
        ({"concurrency": True}, "1 to 65536"),
        ({"crash_limit": "two"}, "1 to 65536"),
        ({"hold_for": 0}, "more than 0"),
        ({"start_timeout": "soon"}, "give seconds"),
        ({"lease": float("inf")}, "give seconds"),
        ({"spool": ""}, "give a folder"),
    ],
)
def test_an_unusable_value_is_refused_with_a_remedy(
    setting: dict[str, Any], remedy: str
) -> None:
    with pytest.raises(Misconfigured, match=remedy):
        load(setting)


@pytest.mark.parametrize(
    ("times", "numbers"),
    [
        ({"handler_timeout": 60, "lease": 30}, "handler_timeout is 60 s and lease is"),
        ({"lease": 30, "visibility": 30}, "lease is 30 s and visibility is 30 s"),
        ({"handler_timeout": 9, "visibility": 5}, "is 9 s and visibility is 5 s"),
    ],
)
def test_time_outs_in_the_wrong_order_are_refused_with_the_numbers(
    times: dict[str, Any], numbers: str
) -> None:
    with pytest.raises(Misconfigured, match=numbers):
        load(times)


def test_a_message_is_kept_alive_thrice_within_its_lease() -> None:
    usual, short = load(), load({"lease": 3, "visibility": 60})

    assert (usual.keep_alive_every, short.keep_alive_every) == (5, 1)


def without_api_key(url: object, **environ: str) -> Settings:
    arguments = {name: value for name, value in NEEDED.items() if name != "api_key"}
    return settings.load({**arguments, "url": url}, environ)  # type: ignore[typeddict-item]


@pytest.mark.parametrize(
    ("url", "urls"),
    [
        ("https://pw_k%2Fy@a.example.com/x/", ("https://a.example.com/x",)),
        ("http://pw_k%2Fy@127.0.0.1:8000", ("http://127.0.0.1:8000",)),
        ("https://pw_k%2Fy:@[::1]:8000", ("https://[::1]:8000",)),
        (
            "https://pw_k%2Fy@a.example.com, https://b.example.com",
            ("https://a.example.com", "https://b.example.com"),
        ),
        (
            ["https://a.example.com", "https://pw_k%2Fy@b.example.com"],
            ("https://a.example.com", "https://b.example.com"),
        ),
    ],
)
def test_an_address_may_carry_the_key_and_is_kept_without_it(
    url: object, urls: tuple[str, ...]
) -> None:
    argument = without_api_key(url)

    assert (argument.url, argument.api_key) == (urls, "pw_k/y")
    assert "pw_k" not in repr(argument)


def test_the_environment_may_carry_the_key_in_the_address() -> None:
    options: Options = {"topic": "orders", "consumer_group": "billing"}

    read = settings.load(options, {"POISONGUARD_URL": "https://pw_k@h.example.com"})

    assert (read.url, read.api_key) == (("https://h.example.com",), "pw_k")


@pytest.mark.parametrize(
    "url",
    [
        "https://pw_secret:pw_secret@h.example.com",
        "https://:pw_secret@h.example.com",
        "ftp://pw_secret@h.example.com",
        "pw_secret@h.example.com",
        "https://pw_secret@",
        "https://pw_secret@a.example.com,https://pw_secret2@b.example.com",
    ],
)
def test_an_address_that_cannot_be_used_is_told_without_its_key(url: str) -> None:
    with pytest.raises(Misconfigured) as wrong:
        without_api_key(url)

    assert "pw_secret" not in str(wrong.value)


@pytest.mark.parametrize("api_key", ["pw_another", lambda: "pw_k"])
def test_two_different_keys_are_refused(api_key: object) -> None:
    with pytest.raises(Misconfigured, match="give it once") as wrong:
        load({"url": "https://pw_k@h.example.com", "api_key": api_key})

    assert "pw_k" not in str(wrong.value)
    assert load({"url": "https://pw_test_key@h"}).api_key == "pw_test_key"


def test_a_guard_reads_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POISONGUARD_URL", "https://a.example.com")
    monkeypatch.setenv("POISONGUARD_API_KEY", "pw_key")

    guard = Guard(topic="orders", consumer_group="billing", journal=None)

    assert guard.settings.url == ("https://a.example.com",)
