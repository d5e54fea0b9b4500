"""The settings of a guard: arguments, then the environment, validated once."""

from __future__ import annotations

import difflib
import math
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, TypedDict
from urllib.parse import urlsplit

from poisonguard import addresses
from poisonguard.contract import NAME_LIMIT, is_name
from poisonguard.errors import Misconfigured

PREFIX = "POISONGUARD_"
KEEP_ALIVE_EVERY = 5.0
# Read elsewhere: the journal's folder, the mark of a supervised process, and what
# `python -m poisonguard.sweeper` takes from the environment.
OTHERS = frozenset(
    {
        *("POISONGUARD_JOURNAL", "POISONGUARD_SUPERVISOR"),
        *("POISONGUARD_OUTBOX_DSN", "POISONGUARD_OUTBOX_BROKER"),
    }
)

ApiKey = str | Callable[[], str]


class Options(TypedDict, total=False):
    """The keyword arguments of a guard that the environment may give as well."""

    topic: str
    consumer_group: str
    url: str | Sequence[str]
    api_key: ApiKey
    client_name: str
    sub_id: str | None
    version: str | None
    when_away: Literal["hold", "spool"]
    when_unloaded: Literal["refuse", "start"]
    spool: str | Path | None
    start_timeout: float
    hold_for: float
    concurrency: int
    crash_limit: int
    handler_timeout: float | None
    lease: float | None
    visibility: float | None
    suspect: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """The settings of a guard; times are seconds.

    `version` is the handler's. `when_unloaded` says what to do when the skip list is
    not loaded after `start_timeout`: refuse to start, or start without it. A message
    that cannot be decided is held for up to `hold_for`, then released. At most
    `concurrency` messages are handled at once. `crash_limit` deaths of its own make a
    message poison. A handler that takes longer than `handler_timeout` hangs;
    `lease` and `visibility` are the broker's, and only compared. Without `suspect`,
    other consumers skip at once what this one fails on.
    """

    topic: str
    consumer_group: str
    url: tuple[str, ...]
    api_key: ApiKey = field(repr=False)
    client_name: str
    sub_id: str | None = None
    version: str | None = None
    when_away: Literal["hold", "spool"] = "hold"
    when_unloaded: Literal["refuse", "start"] = "refuse"
    spool: Path | None = None
    start_timeout: float = 30.0
    hold_for: float = 30.0
    concurrency: int = 64
    crash_limit: int = 2
    handler_timeout: float | None = None
    lease: float | None = None
    visibility: float | None = None
    suspect: bool = True

    def __post_init__(self) -> None:
        if self.when_away == "spool" and self.spool is None:
            raise Misconfigured(
                'when_away is "spool", but there is no spool: give a folder on a volume'
                " that outlives this process, or hold."
            )
        self._check_order()

    @property
    def keep_alive_every(self) -> float:
        """Return the seconds between keep-alive calls for a waiting message."""
        ends = [seconds for seconds in (self.lease, self.visibility) if seconds]
        return min([KEEP_ALIVE_EVERY, *(seconds / 3 for seconds in ends)])

    def _check_order(self) -> None:
        """Raise Misconfigured for a guard's time-out not shorter than the next one.

        The order is that for handlers, that for claims, and that for visibility.
        """
        limits = [
            (name, seconds)
            for name in ("handler_timeout", "lease", "visibility")
            if (seconds := getattr(self, name)) is not None
        ]
        for (shorter, less), (longer, more) in pairwise(limits):
            if not less < more:
                raise Misconfigured(
                    f"{shorter} is {less:g} s and {longer} is {more:g} s, but the first"
                    " must end before the second: handler_timeout < lease < visibility."
                )


def load(options: Options, environ: Mapping[str, str]) -> Settings:
    """Load a guard's settings; raise `Misconfigured` with a line on the remedy."""
    _refuse_unknown_variables(environ)
    values: dict[str, Any] = {
        name: environ[PREFIX + name.upper()]
        for name in KNOWN
        if environ.get(PREFIX + name.upper())
    }
    values |= {name: value for name, value in options.items() if value is not None}
    _refuse_unknown_options(values)
    values |= _split_key_from_url(values)
    values.setdefault("client_name", socket.gethostname())
    for name in ("topic", "consumer_group", "url", "api_key"):
        if name not in values:
            raise Misconfigured(
                f"{name} is missing: pass {name}=... or set {PREFIX}{name.upper()}."
            )
    return Settings(
        **{name: KNOWN[name](name, value) for name, value in values.items()}
    )


def _split_key_from_url(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the url without its API key, and the key as `api_key`; {} without a key.

    So neither storing nor logging the url shows it. Raise Misconfigured for two keys.
    """
    texts = _addresses(values.get("url"))
    if not all(isinstance(text, str) for text in texts):
        return {}
    pairs = [addresses.without_key(text.strip()) for text in texts]
    key = addresses.one_key(key for _, key in pairs)
    if key is None:
        return {}
    if values.get("api_key", key) != key:
        raise Misconfigured(
            "There is a key in url and another one in api_key: give it once."
        )
    return {"url": [url for url, _ in pairs], "api_key": key}


def _addresses(value: object) -> Sequence[Any]:
    """Split server addresses at commas; return a sequence as it is."""
    if isinstance(value, str):
        return value.split(",")
    return value if isinstance(value, Sequence) else ()


def _refuse_unknown_variables(environ: Mapping[str, str]) -> None:
    """Raise Misconfigured for an unknown POISONGUARD_ variable."""
    names = {PREFIX + name.upper() for name in KNOWN} | OTHERS
    for name in sorted(environ):
        if name.startswith(PREFIX) and name not in names:
            raise Misconfigured(f"{name} is unknown{_suggestion(name, names)}")


def _refuse_unknown_options(values: Mapping[str, object]) -> None:
    """Raise Misconfigured for an unknown setting of a guard."""
    for name in values:
        if name not in KNOWN:
            raise Misconfigured(f"{name} is no setting{_suggestion(name, set(KNOWN))}")


def _suggestion(name: str, names: set[str]) -> str:
    """Return how a sentence about an unknown setting ends: with a similar name."""
    close = difflib.get_close_matches(name, sorted(names), n=1)
    return f": did you mean {close[0]}?" if close else ": remove it."


def _wrong(name: str, value: object, remedy: str) -> Misconfigured:
    """Build the Misconfigured of a setting that cannot be used."""
    return Misconfigured(f"{name} is {value!r:.300}: {remedy}")


def _name(name: str, value: object) -> str:
    """Return a valid name in a setting; raise Misconfigured for anything else."""
    if not isinstance(value, str) or not is_name(value):
        raise _wrong(name, value, f"give 1 to {NAME_LIMIT} printable characters.")
    return value


def _urls(name: str, value: object) -> tuple[str, ...]:
    """Parse one server address or several; raise Misconfigured for unusable ones."""
    texts = _addresses(value)
    if not texts:
        raise _wrong(name, value, "give an address or several, the first preferred.")
    return tuple(_url(name, text) for text in texts)


def _url(name: str, value: object) -> str:
    """Return a server address without last slash; raise Misconfigured for others."""
    text = value.strip().rstrip("/") if isinstance(value, str) else ""
    parts = urlsplit(text)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        remedy = "give it like https://poisonweb.example.com."
        raise _wrong(name, addresses.without_credentials(value), remedy)
    return text


def _api_key(name: str, value: object) -> ApiKey:
    """Return an API key, or the function that returns it; raise for anything else."""
    if callable(value):
        return value
    if not isinstance(value, str) or not value.strip():
        raise Misconfigured(f"{name} is empty: give the key, or a function that does.")
    return value.strip()


def _seconds(name: str, value: object) -> float:
    """Parse seconds, more than 0; raise Misconfigured for anything else."""
    try:
        seconds = float(value)  # type: ignore[arg-type]  # what it cannot read, raises
    except (TypeError, ValueError):
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise _wrong(name, value, "give seconds, more than 0.")
    return seconds


def _count(name: str, value: object) -> int:
    """Parse a whole number from 1 to 65536; raise Misconfigured for others."""
    text = str(value)
    if isinstance(value, bool) or not text.isdecimal() or not 0 < int(text) <= 65_536:
        raise _wrong(name, value, "give a whole number from 1 to 65536.")
    return int(text)


def _one_of(*words: str) -> Callable[[str, object], str]:
    """Return a parser of a setting that accepts only these words."""

    def parse(name: str, value: object) -> str:
        if not isinstance(value, str) or value not in words:
            raise _wrong(name, value, f"give {' or '.join(words)}.")
        return value

    return parse


def _flag(name: str, value: object) -> bool:
    """Parse a setting: a bool, 0 or 1; raise Misconfigured for anything else."""
    if isinstance(value, bool):
        return value
    if value not in {"0", "1"}:
        raise _wrong(name, value, "give 0 or 1.")
    return value == "1"


def _folder(name: str, value: object) -> Path:
    """Return the path of a folder; raise Misconfigured for anything else."""
    if not isinstance(value, str | Path) or not str(value):
        raise _wrong(name, value, "give a folder.")
    return Path(value)


_PARSERS: dict[str, Callable[[str, object], Any]] = {
    "url": _urls,
    "api_key": _api_key,
    "when_away": _one_of("hold", "spool"),
    "when_unloaded": _one_of("refuse", "start"),
    "spool": _folder,
    "start_timeout": _seconds,
    "hold_for": _seconds,
    "concurrency": _count,
    "crash_limit": _count,
    "handler_timeout": _seconds,
    "lease": _seconds,
    "visibility": _seconds,
    "suspect": _flag,
}
KNOWN = {field.name: _PARSERS.get(field.name, _name) for field in fields(Settings)}
