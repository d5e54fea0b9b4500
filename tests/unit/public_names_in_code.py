"""Collect the names that other processes see: what a rename inside must not change.

`released_names.json` holds those of the release that the consumers, scripts and
dashboards of today were written for.
"""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core.management import BaseCommand, get_commands, load_command_class
from django.urls import get_resolver
from drf_spectacular.generators import SchemaGenerator

from apps.audit.services import Action
from apps.core import notify_channel
from apps.core.errors import PoisonwebError
from apps.dashboard.preferences import PREFERENCES
from poisonweb.celery import app
from poisonweb.env import KNOWN

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("apps", "poisonweb", "sdk", "spark")
# Headers, metrics, salts, channels, locks, media types and files begin in these ways.
LITERAL = re.compile(
    r"(?:poisonweb|poisonguard|x-|urn:|lane:|operation:|application/vnd\.)[\w.:+/-]*"
    r"|\.(?:journal|spool|json|stacks|lock|attempts)",
    re.IGNORECASE,
)
METRIC = re.compile(r"[a-z]+(?:_[a-z]+)+")
COMMAND = re.compile("[a-z]+")
COOKIE = re.compile(r"pw_[a-z_]+")
IMPORTED_FROM = (
    "poisonguard",
    "poisonguard.amps",
    "poisonguard.contract",
    "poisonguard.errors",
    "poisonguard.fingerprint",
    "poisonguard.readers",
    "poisonguard.readers.amps",
    "poisonguard.readers.pika",
    "poisonguard.readers.plain",
    "poisonguard.readers.redis_streams",
    "poisonguard.settings",
)


def collect() -> dict[str, list[str]]:
    """Return the released names of each kind, in order."""
    kinds: dict[str, Iterator[str]] = {
        "columns": _columns(),
        "indexes and constraints": _constraints(),
        "Celery tasks": _tasks(),
        "settings": _settings(),
        "API": _api(),
        "problems": _problems(),
        "URLs": _urls(),
        "literals": _literals(),
        "SDK": _sdk(),
        "metrics": _metrics(),
        "cookies": _cookies(),
        "salts": _salts(),
        "imports of migrations": _imports_of_migrations(),
        "commands": _commands(),
        "programs": _programs(),
        "notices": _notices(),
        "audit words": (action.value for action in Action),
    }
    return {kind: sorted(set(names)) for kind, names in kinds.items()}


def _columns() -> Iterator[str]:
    for model in apps.get_models():
        if model.__module__.startswith("apps."):
            for field in model._meta.local_fields:
                yield f"{model._meta.db_table}.{field.column}"


def _constraints() -> Iterator[str]:
    for model in apps.get_models():
        if model.__module__.startswith("apps."):
            meta = model._meta
            yield from (each.name for each in [*meta.indexes, *meta.constraints])


def _tasks() -> Iterator[str]:
    app.loader.import_default_modules()
    yield from (name for name in app.tasks if name.startswith("apps."))
    yield f"queue {app.conf.task_default_queue}"
    yield from (f"queue {route['queue']}" for route in app.conf.task_routes.values())


def _settings() -> Iterator[str]:
    yield from KNOWN


def _api() -> Iterator[str]:
    """Give each call with its parameters, and each member of each schema."""
    make: Any = SchemaGenerator
    schema = make().get_schema(public=True)
    for path, calls in schema["paths"].items():
        for method, call in calls.items():
            yield f"{method} {path}"
            yield f"operation {call['operationId']}"
            for parameter in call.get("parameters", ()):
                yield f"{method} {path} {parameter['in']} {parameter['name']}"
    for name, component in schema["components"]["schemas"].items():
        yield name
        yield from (f"{name}.{member}" for member in component.get("properties", ()))
        yield from (f"{name}={value}" for value in component.get("enum", ()))


def _problems() -> Iterator[str]:
    kinds: list[type] = [PoisonwebError]
    for kind in kinds:
        name = re.sub("(?<=[a-z])(?=[A-Z])", "-", kind.__name__).lower()
        yield getattr(kind, "problem", "") or name
        kinds.extend(kind.__subclasses__())


def _urls() -> Iterator[str]:
    resolvers: list[tuple[str, Any]] = [("", get_resolver())]
    for start, resolver in resolvers:
        for pattern in resolver.url_patterns:
            address = f"{start}{pattern.pattern}"
            if hasattr(pattern, "url_patterns"):
                resolvers.append((address, pattern))
            else:
                yield f"{pattern.name or ''} {address}"


def _literals() -> Iterator[str]:
    for tree in _trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
                text = node.value
                text = text.decode("latin-1") if isinstance(text, bytes) else text
                if LITERAL.fullmatch(text) and not _is_module(text):
                    yield text


def _is_module(text: str) -> bool:
    """Tell whether a text is the path of a module, which only we import."""
    path = ROOT / "sdk" / text.replace(".", "/")
    here = ROOT / text.replace(".", "/")
    return any(
        each.with_suffix(".py").exists() or each.is_dir() for each in (path, here)
    )


def _trees() -> Iterator[ast.Module]:
    yield from (tree for file, tree in _parsed() if "migrations" not in file)


@cache
def _parsed() -> list[tuple[str, ast.Module]]:
    """Parse each module of the product; return it with its path."""
    listed = subprocess.run(
        ["git", "ls-files", *(f"{source}/*.py" for source in SOURCES)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return [
        (line, ast.parse((ROOT / line).read_text()))
        for line in listed.splitlines()
        if (ROOT / line).exists()
    ]


def _texts(node: ast.AST) -> Iterator[str]:
    for each in ast.walk(node):
        if isinstance(each, ast.Constant) and isinstance(each.value, str):
            yield each.value


def _metrics() -> Iterator[str]:
    """Give the names of metrics and of their labels."""
    for file, tree in _parsed():
        if Path(file).stem == "metrics":
            yield from filter(METRIC.fullmatch, _texts(tree))
            for node in ast.walk(tree):
                yield from filter(str.islower, _labels(node))


def _labels(node: ast.AST) -> Iterator[str]:
    """Give the labels that a family names, or with which a sample is written."""
    match node:
        case ast.keyword(arg="labels", value=ast.List(elts=labels)):
            yield from (text for label in labels for text in _texts(label))
        case ast.Dict(keys=keys):
            yield from (text for key in keys if key for text in _texts(key))
        case _:
            pass


def _cookies() -> Iterator[str]:
    """Give the names of cookies and the values that browsers keep for preferences."""
    yield from (settings.SESSION_COOKIE_NAME, settings.CSRF_COOKIE_NAME)
    for preference in PREFERENCES:
        yield from (f"{preference.cookie}={value}" for value, _ in preference.options)
    for file, tree in _parsed():
        if not file.startswith("sdk/"):
            yield from filter(COOKIE.fullmatch, _texts(tree))


def _salts() -> Iterator[str]:
    """Give the salts of signatures; one that is formatted has {} for each part."""
    for tree in _trees():
        for node in ast.walk(tree):
            match node:
                case ast.keyword(arg="salt", value=value):
                    yield from _formats(value)
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    yield from _formats(value) if name.endswith("SALT") else ()
                case ast.Call(func=ast.Name(id="salted_hmac"), args=[salt, *_]):
                    yield from _formats(salt)
                case ast.FunctionDef(name=name):
                    returns = (n for n in ast.walk(node) if isinstance(n, ast.Return))
                    for each in returns if name.endswith("salt") else ():
                        yield from _formats(each.value)
                case _:
                    pass


def _formats(value: ast.expr | None) -> Iterator[str]:
    match value:
        case ast.Constant(value=str(text)):
            yield text
        case ast.Constant(value=bytes(data)):
            yield data.decode()
        case ast.JoinedStr(values=parts):
            yield "".join(next(_formats(part), "{}") for part in parts)
        case _:
            pass


def _imports_of_migrations() -> Iterator[str]:
    """Give what migrations import of ours, where it is still there."""
    for file, tree in _parsed():
        if "/migrations/" in file:
            yield from filter(_is_there, _imports(tree))


def _imports(tree: ast.Module) -> Iterator[str]:
    modules = set[str]()
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(module), names=names):
                yield from (f"{module}.{each.name}" for each in names)
            case ast.Import(names=names):
                modules.update(each.name for each in names)
            case ast.Attribute() if ast.unparse(node.value) in modules:
                yield ast.unparse(node)
            case _:
                pass


def _is_there(path: str) -> bool:
    module, _, name = path.rpartition(".")
    is_ours = path.startswith(("apps.", "poisonguard.", "poisonweb."))
    return is_ours and hasattr(import_module(module), name)


def _commands() -> Iterator[str]:
    """Give the commands of manage.py with their arguments."""
    usual = {each.dest for each in _arguments(BaseCommand())}
    for name, app_name in get_commands().items():
        if app_name.startswith(("apps.", "poisonweb")):
            yield name
            for each in _arguments(load_command_class(app_name, name)):
                if each.dest not in usual:
                    options = each.option_strings or [each.dest]
                    yield from (f"{name} {option}" for option in options)


def _arguments(command: BaseCommand) -> list[Any]:
    return command.create_parser("manage.py", "")._actions


def _programs() -> Iterator[str]:
    """Give what `python -m` may run, its commands, and all options of such programs."""
    for file, tree in _parsed():
        module = file.removeprefix("sdk/").removesuffix(".py").replace("/", ".")
        if any(ast.unparse(node).startswith("if __name__ ==") for node in tree.body):
            yield module.removesuffix(".__main__")
        if module == "poisonguard.__main__":
            yield from filter(COMMAND.fullmatch, _texts(tree))
        if "/management/" in file:
            continue
        for node in ast.walk(tree):
            match node:
                case ast.Call(
                    func=ast.Attribute(attr="add_argument"), args=[option, *_]
                ):
                    yield from _formats(option)
                case _:
                    pass


def _notices() -> Iterator[str]:
    """Give the channel between web processes and the kinds of its notices."""
    names = vars(notify_channel)
    constants = (value for name, value in names.items() if name.isupper())
    yield from (value for value in constants if isinstance(value, str))


def _sdk() -> Iterator[str]:
    """Give what applications import, with the parameters of each function."""
    for name in IMPORTED_FROM:
        module = import_module(name)
        for public in getattr(module, "__all__", None) or _defined_in(module):
            yield f"{name}.{public}"
            yield from (f"{name}.{public}{rest}" for rest in _rest(module, public))


def _defined_in(module: Any) -> Iterator[str]:
    for name, value in vars(module).items():
        is_own = getattr(value, "__module__", "") == module.__name__
        is_constant = name.isupper() and type(value).__module__ == "builtins"
        is_constant = is_constant and not isinstance(value, type)
        if not name.startswith("_") and (is_own or is_constant):
            yield name


def _rest(module: Any, name: str) -> Iterator[str]:
    value = getattr(module, name)
    if inspect.isfunction(value):
        yield from (f"({each})" for each in inspect.signature(value).parameters)
    if not inspect.isclass(value):
        return
    for attribute in vars(value):
        if not attribute.startswith("_"):
            yield f".{attribute}"
    try:
        parameters = inspect.signature(value).parameters
    except (TypeError, ValueError):
        return
    yield from (f"({each})" for each in parameters)
