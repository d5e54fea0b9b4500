"""The environment: what is understood, and the line that stops the start."""

from __future__ import annotations

import pytest

from poisonweb.env import KNOWN, BadEnvironment, load


def test_nothing_given_is_the_embedded_mode_on_defaults() -> None:
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
        ("POISONWEB_LOG_LEVEL", "LOUD", "use one of"),
        ("POISONWEB_AUDIT_CHECKPOINT_URL", "ftp://example.com/", "is not an address"),
        ("POISONWEB_AUDIT_CHECKPOINT_URL", "https://", "is not an address"),
        ("POISONWEB_AUDIT_CHECKPOINT_URL", "https://a b/", "is not an address"),
        ("POISONWEB_AUDIT_CHECKPOINT_URL", "https://a:x/", "is not an address"),
        ("POISONWEB_AUDIT_CHECKPOINT_URL", "https://[/", "is not an address"),
    ],
)
def test_what_cannot_be_used_stops_the_start(name: str, value: str, said: str) -> None:
    with pytest.raises(BadEnvironment, match=said) as refusal:
        load({name: value})

    assert name in str(refusal.value)


def test_every_known_name_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    class Asked(dict[str, str]):
        asked: set[str] = set()

        def get(self, key: str, default: object = None) -> object:  # type: ignore[override]
            self.asked.add(key)
            return super().get(key, default)

    environ = Asked()
    load(environ)

    assert environ.asked >= KNOWN
