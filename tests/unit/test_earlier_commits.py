"""The commits that `make soak` runs beside this one are in the history of this branch.

Only the soak uses them, so that a wrong id would be noticed there alone.
"""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.unit.test_rules_of_the_whole_tree import ROOT, tracked

CONSTANT = re.compile(
    r'^[A-Z_]*(?:COMMIT|RELEASE)[A-Z_]* = "([0-9a-f]{7,40})"$', re.MULTILINE
)


def git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ("git", *arguments), cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_each_commit_that_a_test_names_is_an_ancestor_of_this_one() -> None:
    if git("rev-parse", "--is-shallow-repository").stdout.strip() != "false":
        pytest.skip("a shallow clone lacks earlier commits")
    commits = {
        f"{file.relative_to(ROOT)}: {commit}": commit
        for file in tracked(".py")
        if file.is_relative_to(ROOT / "tests")
        for commit in CONSTANT.findall(file.read_text())
    }

    wrong = [
        f"{place}: {answer.stderr.strip() or 'not in the history of this branch'}"
        for place, commit in commits.items()
        if (answer := git("merge-base", "--is-ancestor", commit, "HEAD")).returncode
    ]

    assert len(commits) >= 3
    assert wrong == []
