"""What the whole tree promises: its layers, its doors, and that nothing is a stub."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.apps import apps
from django.core.management import call_command
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder
from django.template.loader import get_template
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver

from apps.core.schema_changes import migrate
from poisonweb.env import KNOWN

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("poisonweb", "apps", "sdk")
KINDS_OF_LAYERS = ("models", "querysets", "services", "states")
OPEN_TO_ALL = {
    *("healthz", "readyz", "sign-in", "sign-in/code"),
    *("sign-in/provider", "sign-in/provider/callback"),
}
# Where each kind of argument of a path leads: to something that is not there.
ARGUMENTS = {
    r"<int:\w+>": "0",
    r"<uuid:\w+>": "00000000-0000-7000-8000-000000000000",
    r"<path:\w+>": "nowhere",
    r"<\w+>": "nowhere",
}


def tracked(*suffixes: str) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    files = (ROOT / line for line in listed.splitlines())
    return [file for file in files if file.suffix in suffixes and file.exists()]


def folders(file: Path) -> tuple[str, ...]:
    """Return the folders of a file, without those in which the tree itself lies."""
    return file.relative_to(ROOT).parts[:-1]


def product_modules() -> list[Path]:
    return [
        file
        for file in tracked(".py")
        if file.relative_to(ROOT).parts[0] in PRODUCT
        and "migrations" not in folders(file)
    ]


def test_the_import_contracts_hold() -> None:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]

    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout


def test_each_optional_layer_is_a_module_and_modules_of_its_kinds_are_layers() -> None:
    """A renamed module would be in no layer: the contract would hold for nothing."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    (contract,) = (
        each
        for each in contracts["importlinter"]["contracts"]
        if "(models)" in each.get("layers", ())
    )
    layers = set(re.findall(r"\((\w+)\)", " ".join(contract["layers"])))
    modules = {
        path.stem
        for container in contract["containers"]
        for path in ROOT.joinpath(*container.split(".")).iterdir()
    }

    assert layers - modules == set()
    assert {name for name in modules if name.endswith(KINDS_OF_LAYERS)} <= layers


def test_nothing_but_its_adapter_knows_a_broker_by_name() -> None:
    names = re.compile(r"redis_streams|rabbitmq|azure|\bsqs\b", re.IGNORECASE)
    apps = (file.relative_to(ROOT) for file in product_modules())
    others = [file for file in apps if file.parts[0] == "apps"]
    others += [file.relative_to(ROOT) for file in tracked(".html", ".js")]

    violations = [
        str(file)
        for file in others
        if file.parts[:2] != ("apps", "brokers")
        and names.search((ROOT / file).read_text())
    ]

    assert violations == []


def test_no_sentence_of_a_broker_has_backticks() -> None:
    """Pages and answers show errors as plain text: a backtick would stand there."""
    files = [file for file in product_modules() if "brokers" in folders(file)]

    violations = [
        f"{file.relative_to(ROOT)}:{line}"
        for file in files
        for line, text in texts_of(ast.parse(file.read_text()))
        if "`" in text and "failure_headers" not in folders(file)
    ]

    assert len(files) > 50
    assert violations == []


def texts_of(module: ast.Module) -> Iterator[tuple[int, str]]:
    """Give every text but the docstrings, with its line."""
    alone = {id(node.value) for node in ast.walk(module) if isinstance(node, ast.Expr)}
    for node in ast.walk(module):
        if id(node) in alone or not isinstance(node, ast.Constant):
            continue
        if isinstance(node.value, str):
            yield node.lineno, node.value


@pytest.mark.django_db
def test_no_migration_is_pending() -> None:
    call_command("makemigrations", check=True, dry_run=True, verbosity=0)


@pytest.mark.django_db(transaction=True)
def test_every_migration_can_be_taken_back() -> None:
    ours = {app.label for app in apps.get_app_configs() if app.name.startswith("apps.")}
    recorder = MigrationRecorder(connection)

    # All others need one of these, and go with it.
    for app in ("brokers", "team", "audit"):
        migrate(app, "zero")
    assert ours.isdisjoint(app for app, _ in recorder.applied_migrations())
    migrate()


def addresses(resolver: URLResolver, before: str = "/") -> Iterator[str]:
    for pattern in resolver.url_patterns:
        path = before + str(pattern.pattern)
        if isinstance(pattern, URLResolver):
            yield from addresses(pattern, path)
        elif isinstance(pattern, URLPattern):
            for argument, value in ARGUMENTS.items():
                path = re.sub(argument, value, path)
            yield path


@pytest.mark.django_db
@pytest.mark.parametrize("method", ["get", "post"])
def test_every_address_asks_for_a_sign_in(method: str) -> None:
    client = Client()
    visited = 0

    for path in addresses(get_resolver()):
        if path.strip("/") in OPEN_TO_ALL:
            continue
        visited += 1
        answer = getattr(client, method)(path)
        to_sign_in = answer.status_code == 302 and "/sign-in" in answer["Location"]
        assert to_sign_in or answer.status_code in {401, 403}, path

    assert visited > 20


def is_stub(body: list[ast.stmt]) -> bool:
    """Tell whether a function does nothing; one that says why it need not, may."""
    return all(
        isinstance(s, ast.Pass)
        or (isinstance(s, ast.Expr) and _is_ellipsis(s.value))
        or (isinstance(s, ast.Raise) and "NotImplemented" in ast.dump(s))
        for s in body
    )


def _is_ellipsis(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is ...


def functions(tree: ast.AST, *, in_protocol: bool = False) -> Iterator[ast.FunctionDef]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            bases = {ast.unparse(base) for base in node.bases}
            is_one = any(base.startswith("Protocol") for base in bases)
            yield from functions(node, in_protocol=is_one)
        elif isinstance(node, ast.FunctionDef) and not in_protocol:
            if not is_overload(node):
                yield node
            yield from functions(node)


def is_overload(function: ast.FunctionDef) -> bool:
    """Return whether a function only declares types of another one below it."""
    return any(ast.unparse(each) == "overload" for each in function.decorator_list)


def test_no_function_is_a_stub() -> None:
    stubs = [
        f"{file.relative_to(ROOT)}:{function.lineno} {function.name}"
        for file in product_modules()
        for function in functions(ast.parse(file.read_text()))
        if is_stub(function.body)
    ]

    assert stubs == []


def test_nothing_is_left_for_later_in_the_text() -> None:
    words = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")

    violations = [
        str(file.relative_to(ROOT))
        for file in tracked(".py", ".html", ".js", ".css", ".md")
        if file != Path(__file__) and words.search(file.read_text(errors="replace"))
    ]

    assert violations == []


def test_no_file_names_a_registry_or_a_place_on_this_machine() -> None:
    hosts = re.compile(
        "|".join(["pypi" + r"\.org", "python" + "hosted", "npm" + "js", r"debian\.org"])
    )
    place = re.compile(rf"(?<![\w.]){re.escape(str(ROOT))}(?![\w-])")

    violations = [
        str(file.relative_to(ROOT))
        for file in tracked(".py", ".md", ".txt", ".in", ".toml", ".yaml", ".html", "")
        if hosts.search(text := file.read_text(errors="replace")) or place.search(text)
    ]

    assert violations == []


def test_every_setting_is_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()

    missing = [name for name in KNOWN if f"`{name}`" not in readme]

    assert missing == []


def test_every_template_can_be_read() -> None:
    files = [file for file in tracked(".html") if "templates" in folders(file)]

    assert len(files) > 50
    for file in files:
        get_template(str(file.relative_to(ROOT / "templates")))


def test_no_exception_is_swallowed() -> None:
    """An `except` with nothing in it hides what went wrong; `suppress` says so."""
    silent = [
        f"{file.relative_to(ROOT)}:{node.lineno}"
        for file in product_modules()
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ExceptHandler)
        and all(isinstance(statement, ast.Pass) for statement in node.body)
    ]

    assert silent == []


def test_no_module_but_the_policy_doubles_a_pause_by_a_count() -> None:
    """A power that is not bounded as `double_pause` bounds it overflows some day."""
    powers = [
        f"{file.relative_to(ROOT)}:{node.lineno}"
        for file in product_modules()
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Pow)
        and isinstance(node.left, ast.Constant)
        and node.left.value == 2
        and not isinstance(node.right, ast.Constant)
    ]

    assert [power.partition(":")[0] for power in powers] == [
        "sdk/poisonguard/policy.py"
    ], powers


def test_no_pattern_repeats_a_group_possessively() -> None:
    """Python before 3.11.5 then loses matches: an atomic group around it does not.

    See https://github.com/python/cpython/issues/106052.
    """
    repeated = re.compile(r"\)(?:[*+?]|\{\d*,?\d*\})\+")

    violations = [
        f"{file.relative_to(ROOT)}:{number}"
        for file in product_modules()
        for number, line in enumerate(file.read_text().splitlines(), start=1)
        if repeated.search(line)
    ]

    assert violations == []
