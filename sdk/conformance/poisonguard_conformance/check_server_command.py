"""`python -m poisonguard_conformance`: check a server as a consumer sees it.

Exit status: 0 when all checks pass; 1 when one fails; 2 when one could not run because
the key lacks a scope.
"""

from __future__ import annotations

import argparse
import json
import sys
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from time import monotonic
from urllib.parse import urlsplit

from poisonguard_conformance import (
    server_position_checks,
    server_report_intake_checks,
    server_skip_checks,
)
from poisonguard_conformance.raw_http_client import (
    MissingScope,
    ProtocolClient,
    Unreachable,
    Violated,
)
from poisonguard_conformance.server_check_and_played_consumer import Check, Consumer

CHECKS: tuple[Check, ...] = (
    *server_report_intake_checks.CHECKS,
    *server_skip_checks.CHECKS,
    *server_position_checks.CHECKS,
)
NAMES = tuple(check.name for check in CHECKS)
GOOD, FAILED, UNCHECKED = 0, 1, 2
DESCRIPTION = "Play a consumer against a server, and say what the server fails."


class CheckStatus(StrEnum):
    OK = "ok"
    FAILED = "failed"
    NOT_CHECKED = "not checked"


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckResult:
    """The result of one check; `detail` says why it is not ok."""

    name: str
    result: CheckStatus
    says: str
    detail: str
    seconds: float

    def __str__(self) -> str:
        line = f"{self.result:<12}{self.name}"
        if self.result is CheckStatus.OK:
            return line
        return f"{line}: {self.detail}\n{'':<12}the protocol says: {self.says}"


def _parser() -> argparse.ArgumentParser:
    """Build the argument parser of the command that checks a Poisonweb server."""
    parser = argparse.ArgumentParser(
        prog="python -m poisonguard_conformance", description=DESCRIPTION
    )
    parser.add_argument(
        "--url", required=True, type=_url, help="of the server, without /api/v1"
    )
    parser.add_argument(
        "--api-key-file",
        required=True,
        type=_key_in,
        dest="key",
        metavar="FILE",
        help="file that holds the key",
    )
    parser.add_argument(
        "--topic-prefix",
        default="conformance",
        help="the key must have the topics that begin so (default: %(default)s)",
    )
    parser.add_argument(
        "--only", nargs="+", choices=NAMES, metavar="NAME", help="no other checks"
    )
    parser.add_argument(
        "--patience",
        dest="event_timeout",
        type=float,
        default=1.0,
        help="seconds that an event of the stream may take (default: %(default)s)",
    )
    parser.add_argument(
        "--timeout", type=float, default=10.0, help="seconds for any other answer"
    )
    parser.add_argument(
        "--allow-unchecked",
        action="store_true",
        help="do not fail where the key lacks a scope",
    )
    parser.add_argument("--json", action="store_true", help="tell programs")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run conformance checks of a Poisonweb server, and print their results.

    Return the exit status.
    """
    options = _parser().parse_args(arguments)
    wire = ProtocolClient(url=options.url, key=options.key, seconds=options.timeout)
    consumer = Consumer(
        wire=wire,
        topic=f"{options.topic_prefix}-orders",
        client_name=f"conformance-{uuid.uuid4().hex[:12]}",
        event_timeout=options.event_timeout,
    )
    wished = [check for check in CHECKS if check.name in (options.only or NAMES)]
    check_results = []
    for check_result in run_checks(wished, consumer):
        check_results.append(check_result)
        if not options.json:
            _print(str(check_result))
    tell = _as_json if options.json else _as_text
    _print(tell(check_results, consumer))
    return _exit_status(check_results, allow_unchecked=options.allow_unchecked)


def run_checks(checks: Sequence[Check], consumer: Consumer) -> Iterator[CheckResult]:
    """Run conformance checks of a server one by one; yield the result of each.

    Once the server is unreachable, yield the rest as not checked.
    """
    unreachable = ""
    for check in checks:
        started = monotonic()
        result, detail = CheckStatus.NOT_CHECKED, unreachable
        if not unreachable:
            try:
                result, detail = _run_check(check, consumer)
            except Unreachable as trouble:
                unreachable = str(trouble)
                result, detail = CheckStatus.FAILED, unreachable
        yield CheckResult(
            name=check.name,
            result=result,
            says=check.says,
            detail=detail,
            seconds=round(monotonic() - started, 3),
        )


def _run_check(check: Check, consumer: Consumer) -> tuple[CheckStatus, str]:
    """Run one conformance check of a server and clean up; return its status, and why.

    Raise Unreachable if the server is.
    """
    try:
        check.run(consumer)
    except Unreachable:
        raise
    except MissingScope as lacking:
        return CheckStatus.NOT_CHECKED, str(lacking)
    except Violated as violation:
        return CheckStatus.FAILED, str(violation)
    except (AttributeError, LookupError, TypeError, ValueError) as surprise:
        # An answer of a shape that no reader expects is the server's fault as well.
        return CheckStatus.FAILED, f"an answer has another shape: {surprise!r}"
    finally:
        consumer.clean_up()
    return CheckStatus.OK, ""


def _exit_status(check_results: Sequence[CheckResult], *, allow_unchecked: bool) -> int:
    """Return the conformance command's exit status for the results of all checks."""
    results = {check_result.result for check_result in check_results}
    if CheckStatus.FAILED in results:
        return FAILED
    if CheckStatus.NOT_CHECKED in results and not allow_unchecked:
        return UNCHECKED
    return GOOD


def _as_text(check_results: Sequence[CheckResult], consumer: Consumer) -> str:
    """Return the totals of a server's conformance checks as text.

    It says what the checks leave on the server, too.
    """
    counts = {
        result: sum(check_result.result is result for check_result in check_results)
        for result in CheckStatus
    }
    totals = ", ".join(f"{count} {result}" for result, count in counts.items())
    return f"\n{totals}. {_left_behind(consumer)}"


def _as_json(check_results: Sequence[CheckResult], consumer: Consumer) -> str:
    """Return the results of a server's conformance checks as JSON for programs."""
    whole = {
        "checks": [asdict(check_result) for check_result in check_results],
        "left_behind": _left_behind(consumer),
    }
    return json.dumps(whole, indent=2)


def _left_behind(consumer: Consumer) -> str:
    """Describe the messages, positions and skips that the conformance checks leave."""
    sentence = (
        f"Left behind: {len(consumer.poisons)} messages on {consumer.topic} and its"
        f" neighbours, to be dropped as you like (is:open topic:{consumer.topic}*),"
        f" and the positions of {consumer.client_name}."
    )
    if not consumer.irremovable:
        return sentence
    numbers = ", ".join(map(str, consumer.irremovable))
    return f"{sentence} These skips could not be removed: {numbers}."


def _key_in(name: str) -> str:
    """Read the API key for conformance checks from a file.

    Raise ArgumentTypeError if it cannot be read.
    """
    try:
        return Path(name).read_text(encoding="ascii").strip()
    except (OSError, ValueError) as trouble:
        raise argparse.ArgumentTypeError(f"{name} cannot be read: {trouble}") from None


def _url(text: str) -> str:
    """Return the url of the server to check; raise ArgumentTypeError if unusable."""
    parts = urlsplit(text)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        remedy = "write it like https://poison.example.com"
        raise argparse.ArgumentTypeError(f"{text} is no url: {remedy}")
    return text


def _print(text: str) -> None:
    """Print a line of the conformance command at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
