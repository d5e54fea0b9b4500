"""`python -m poisonguard COMMAND`: the parts of the SDK that run by themselves."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import Protocol

from poisonguard import supervisor
from poisonguard.conformance import command as conformance


class Command(Protocol):
    """What a module must have to be one of our commands."""

    HELP: str

    def add_arguments(self, parser: ArgumentParser, /) -> None: ...
    def main(self, arguments: Namespace, /) -> int: ...


COMMANDS: dict[str, Command] = {"run": supervisor, "conformance": conformance}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = ArgumentParser(prog="python -m poisonguard")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, module in COMMANDS.items():
        module.add_arguments(commands.add_parser(name, help=module.HELP))
    chosen = parser.parse_args(arguments)
    return COMMANDS[chosen.command].main(chosen)


if __name__ == "__main__":
    sys.exit(main())
