"""`python -m poisonguard COMMAND`: the commands of the SDK."""

from __future__ import annotations

import runpy
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from importlib.util import find_spec

from poisonguard.supervision import supervisor

CONFORMANCE = "poisonguard_conformance"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the poisonguard command that the arguments name; return its exit status."""
    parser = ArgumentParser(prog="python -m poisonguard")
    commands = parser.add_subparsers(dest="command", required=True)
    supervisor.add_arguments(commands.add_parser("run", help=supervisor.HELP))
    return supervisor.main(parser.parse_args(arguments))


def run_conformance() -> None:
    """Run the conformance checks under their former name, for one release."""
    if find_spec(CONFORMANCE) is None:
        sys.exit(
            "The conformance checks are a package of their own: install"
            f" poisonguard-conformance, and run `python -m {CONFORMANCE}`."
        )
    del sys.argv[1]
    runpy.run_module(CONFORMANCE, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["conformance"]:
        run_conformance()
    sys.exit(main())
