"""Run a benchmark on the code of several trees at once, each with its own servers.

A benchmark is started once for a tree, with the argument `serve`. It does what each
line of its standard input asks for, and answers with the seconds that it took.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks._benchmark_harness import ROUNDS, servers
from poisonweb import env


class Tree:
    """A process that runs the code of one tree, and times what it is told to do."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._read()

    def seconds(self, work: str) -> float:
        """Have a source tree's process do a work once; return the seconds it took."""
        assert self._process.stdin is not None
        print(work, file=self._process.stdin, flush=True)
        return float(self._read())

    def _read(self) -> str:
        """Return the next line that the process of a source tree printed.

        Raises SystemExit if the process has ended.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("the process of a tree has ended")
        return line


@contextmanager
def started(tree: Path, benchmark: str) -> Iterator[Tree]:
    """Run a benchmark's file on a source tree's code, on its own durable servers.

    Yield the `Tree` whose process does the benchmark's work.
    """
    with servers(durable=True) as environ:
        if tree != env.ROOT:
            environ.pop("POISONWEB_LOOPBACK_BROKERS")  # it would refuse this one
        process = subprocess.Popen(
            [sys.executable, benchmark, "serve"],
            cwd=tree,
            env={**os.environ, **environ, "PYTHONPATH": f"{tree}:{tree / 'sdk'}"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        with process:
            yield Tree(process)
            assert process.stdin is not None
            process.stdin.close()


def median_seconds(
    benchmark: str, works: Sequence[str], *, earlier: tuple[str, Path] | None
) -> dict[str, float]:
    """Time all works of a benchmark once a round; return the median seconds of each.

    `earlier` names the first of the works on the code of an earlier source tree.
    """
    times: dict[str, list[float]] = {}
    with ExitStack() as trees:
        ours = trees.enter_context(started(env.ROOT, benchmark))
        turns = [(ours, work, work) for work in works]
        if earlier is not None:
            name, tree = earlier
            before = trees.enter_context(started(tree, benchmark))
            turns.append((before, works[0], name))
        for turn in range(ROUNDS + 1):
            for process, work, name in turns:
                took = process.seconds(work)
                if turn:
                    times.setdefault(name, []).append(took)
    return {name: statistics.median(each) for name, each in times.items()}
