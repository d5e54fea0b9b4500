"""The environment: what is understood, and the line that stops the start."""

from __future__ import annotations

import pytest

from poisonweb.env import KNOWN, BadEnvironment, load

OIDC = {
    "POISONWEB_OIDC_ISSUER": "https://login.example.com/realms/work",
    "POISONWEB_OIDC_CLIENT_ID": "poisonweb",
    "POISONWEB_OIDC_CLIENT_SECRET": "s3cret",
    "POISONWEB_OIDC_GROUPS": "ops=operator, a=b=admin",
}


def test_an_empty_environment_gives_the_embedded_mode_with_defaults() -> None:
    env = load({})

    assert env.database_url is None
    assert (env.environment, env.demo, env.secure) == ("local", True, False)
    assert env.body_limit == 512 * 1024 * 1024


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("POISONWEB_BODYLIMIT", "1", "Did you mean POISONWEB_BODY_LIMIT"),
        ("POISONWEB_XYZ", "1", "is not a setting"),
        ("POISONWEB_DEMO", "yes", "use 1 or 0"),
        ("POISONWEB_BODY_LIMIT", "0", "number of bytes"),
        ("POISONWEB_BODY_LIMIT", "10MB", "number of bytes"),
        ("POISONWEB_BODY_LIMIT", str(2**40), "number of bytes"),
        ("POISONWEB_ENVIRONMENT", "a_b", "letters, digits, dashes"),
        ("POISONWEB_SECOND_FACTOR", "admin,root", "use roles, with commas: viewer"),
        ("POISONWEB_LOG_LEVEL", "LOUD", "use one of"),
        ("POISONWEB_AUDIT_CHECKPOINT_URL", "ftp://example.com/", "is not an address"),
        ("POISONWEB_AUDIT_CHECKPOINT_URL", "https://", "is not an address"),
        ("POISONWEB_AUDIT_CHECKPOINT_URL", "https://a b/", "is not an address"),
        ("POISONWEB_AUDIT_CHECKPOINT_URL", "https://a:x/", "is not an address"),
        ("POISONWEB_AUDIT_CHECKPOINT_URL", "https://[/", "is not an address"),
    ],
)
def test_an_invalid_setting_stops_the_start(name: str, value: str, said: str) -> None:
    with pytest.raises(BadEnvironment, match=said) as refusal:
        load({name: value})

    assert name in str(refusal.value)


def test_a_provider_is_read_whole() -> None:
    oidc = load(OIDC).oidc

    assert oidc is not None
    assert oidc.roles == {"ops": "operator", "a=b": "admin"}
    assert (oidc.groups_claim, oidc.name) == ("groups", "login.example.com")
    assert oidc.origin == "https://login.example.com"
    assert "s3cret" not in repr(oidc)
    more = {"POISONWEB_OIDC_GROUPS_CLAIM": "roles", "POISONWEB_OIDC_NAME": "Work"}
    oidc = load({**OIDC, **more}).oidc
    assert oidc is not None
    assert (oidc.groups_claim, oidc.name) == ("roles", "Work")


def test_without_any_of_its_settings_there_is_no_provider() -> None:
    assert load({}).oidc is None
    assert load(dict.fromkeys(OIDC, "")).oidc is None


@pytest.mark.parametrize("name", sorted(OIDC))
def test_a_provider_with_a_part_missing_stops_the_start(name: str) -> None:
    with pytest.raises(BadEnvironment, match=f"{name} is missing"):
        load({**OIDC, name: ""})


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("ISSUER", "http://login.example.com", "use the https address"),
        ("ISSUER", "https://a:b@login.example.com", "use the https address"),
        ("ISSUER", "https://login.example.com?x=1", "use the https address"),
        ("ISSUER", "https://login.example.com/" + "x" * 200, "use the https address"),
        ("ISSUER", "login.example.com", "use the https address"),
        ("GROUPS", "ops", "use group=role"),
        ("GROUPS", "ops=root", "use group=role"),
        ("GROUPS", "=admin", "use group=role"),
    ],
)
def test_a_provider_that_cannot_be_used_stops_the_start(
    name: str, value: str, problem: str
) -> None:
    with pytest.raises(BadEnvironment, match=problem) as refusal:
        load({**OIDC, f"POISONWEB_OIDC_{name}": value})

    assert f"POISONWEB_OIDC_{name}" in str(refusal.value)


def test_every_known_name_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    class Recorder(dict[str, str]):
        names: set[str] = set()

        def get(self, key: str, default: object = None) -> object:  # type: ignore[override]
            self.names.add(key)
            return super().get(key, default)

    environ = Recorder()
    load(environ)

    assert environ.names >= KNOWN
