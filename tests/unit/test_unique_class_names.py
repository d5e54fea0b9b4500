"""A class name stands for one idea, in the product, in the SDK and between them.

The serializer, the view and the model of one resource carry the resource's name.
"""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.unit.test_rules_of_the_whole_tree import ROOT, tracked

PRODUCT = ("apps", "poisonweb", "spark")
SDK = ("sdk",)
# Django looks these up by name.
OF_DJANGO = {"Command", "Meta"}
SERIALIZERS, VIEWS = "apps/api/serializers/", "apps/api/views/"

# What else has one name, with the packages that define it, by reason.
SHARED_IN_PRODUCT: dict[str, dict[str, str]] = {
    "a serializer carries the name of the value that it parses": {
        "Matcher": "api poison",
        "PositionUpdate": "api bookmarks",
        "TopicChange": "api capture",
    },
    "a serializer carries the name of the value that it renders": {
        "Capabilities": "api brokers",
        "FoundTopic": "api brokers",
        "Holder": "api bookmarks",
        "OperationDetail": "api api",
        "PoisonDetail": "api api",
        "Reached": "api brokers",
    },
    "clients know the error of RFC 9457 by this name; the others are our problems": {
        "Problem": "api api poison",
    },
    "old migrations name the model: one dead letter, as its broker delivered it": {
        "Delivery": "capture redelivery",
    },
    "old migrations name the models: numbers of a mark, or of a lane, at one moment": {
        "Sample": "bookmarks capture",
    },
}
SHARED_IN_SDK: dict[str, dict[str, str]] = {
    "AMPS's clients call it so; applications import both": {
        "BookmarkStore": "amps bookmarks.py",
    },
}
SHARED_BY_BOTH: dict[str, set[str]] = {
    "a serializer parses what the SDK's contract describes": {
        *("Confirmation", "CounterReport", "FailureReport", "OversizeBody", "Raised"),
    },
    "one idea, as a consumer and as the server see it": {
        *("Counters", "Guard", "Outbox", "Position", "Skip", "SkipList"),
    },
    "one idea, written twice since neither imports the other's processes": {
        *("Identity", "Supervisor"),
    },
    "applications import these of the SDK, and types of problems name ours": {
        *("Invalid", "Refused"),
    },
    "the SDK's server for tests answers with errors of RFC 9457 too": {"Problem"},
}

Definitions = Mapping[str, list[Path]]


def classes_of(*roots: str) -> Definitions:
    """Give the files that define each public class, migrations left out."""
    definitions: defaultdict[str, list[Path]] = defaultdict(list)
    for file in tracked(".py"):
        path = file.relative_to(ROOT)
        if path.parts[0] in roots and "migrations" not in path.parts:
            for name in _names(ast.parse(file.read_text())):
                definitions[name].append(path)
    return definitions


def _names(module: ast.Module) -> Iterator[str]:
    for node in ast.walk(module):
        match node:
            case ast.ClassDef(name=name) if name not in OF_DJANGO and name[0] != "_":
                yield name


def shared(definitions: Definitions) -> dict[str, str]:
    """Give the names defined more than once, each with the packages that do so."""
    return {
        name: " ".join(sorted(map(_package, files)))
        for name, files in definitions.items()
        if len(files) > 1 and not is_one_resource(files)
    }


def _package(file: Path) -> str:
    return file.parts[{"apps": 1, "sdk": 2}.get(file.parts[0], 0)]


def is_one_resource(files: list[Path]) -> bool:
    """Tell whether one serializer, one view and one model, or two of them, share it."""
    kinds = Counter(map(_kind, files))
    # The view of a resource and its serializer are in modules of one name.
    modules = {file.stem for file in files if _kind(file) in {SERIALIZERS, VIEWS}}
    return len(files) == len(kinds) and "" not in kinds and len(modules) == 1


def _kind(file: Path) -> str:
    """Return what a file defines: serializers, views, models, or "" for the rest."""
    path = str(file)
    if file.stem == "base":  # fields, and classes to derive from
        return ""
    for folder in (SERIALIZERS, VIEWS):
        if path.startswith(folder):
            return folder
    is_model = file.stem == "models" or file.parent.name == "models"
    return "models" if is_model else ""


def flat(by_reason: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    return {name: each for names in by_reason.values() for name, each in names.items()}


@pytest.mark.parametrize(
    ("roots", "allowed"), [(PRODUCT, SHARED_IN_PRODUCT), (SDK, SHARED_IN_SDK)]
)
def test_a_class_name_is_defined_once(
    roots: tuple[str, ...], allowed: dict[str, dict[str, str]]
) -> None:
    definitions = classes_of(*roots)

    violations = shared(definitions).items() - flat(allowed).items()

    assert len(definitions) > 100
    assert sorted(violations) == []


@pytest.mark.parametrize(
    ("roots", "allowed"), [(PRODUCT, SHARED_IN_PRODUCT), (SDK, SHARED_IN_SDK)]
)
def test_each_shared_name_is_still_shared(
    roots: tuple[str, ...], allowed: dict[str, dict[str, str]]
) -> None:
    needless = flat(allowed).items() - shared(classes_of(*roots)).items()

    assert sorted(needless) == []


def test_product_and_sdk_share_a_class_name_only_for_one_idea() -> None:
    names = classes_of(*PRODUCT).keys() & classes_of(*SDK).keys()

    assert names == set[str]().union(*SHARED_BY_BOTH.values())


def test_no_two_modules_of_tests_and_benchmarks_define_one_class_name() -> None:
    definitions: defaultdict[str, list[str]] = defaultdict(list)
    for file in tracked(".py"):
        path = file.relative_to(ROOT)
        if path.parts[0] in {"tests", "benchmarks"}:
            for node in ast.parse(file.read_text()).body:
                if isinstance(node, ast.ClassDef):
                    definitions[node.name].append(str(path))

    assert len(definitions) > 100
    assert {name: files for name, files in definitions.items() if files[1:]} == {}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ("apps/api/serializers/message_skips.py apps/api/views/message_skips.py", True),
        ("apps/api/serializers/message_skips.py apps/poison/models/skips.py", True),
        ("apps/api/views/position_moves.py apps/bookmarks/models.py", True),
        (
            "apps/api/serializers/problem_details.py apps/api/views/poison_problems.py",
            False,
        ),
        ("apps/api/serializers/brokers.py apps/api/serializers/topics.py", False),
        (
            "apps/api/views/consumer_reports.py apps/dashboard/selectors/topics.py",
            False,
        ),
        ("apps/api/serializers/base.py apps/reports/models.py", False),
        ("apps/bookmarks/models.py apps/capture/models.py", False),
    ],
)
def test_only_serializer_view_and_model_are_one_resource(
    files: str, expected: bool
) -> None:
    assert is_one_resource([Path(file) for file in files.split()]) is expected
