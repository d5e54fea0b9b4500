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
from importlib import import_module
from pathlib import Path
from typing import Any

from django.apps import apps
from django.urls import get_resolver
from drf_spectacular.generators import SchemaGenerator

from apps.core.errors import PoisonwebError
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
IMPORTED_FROM = (
    "poisonguard",
    "poisonguard.amps",
    "poisonguard.contract",
    "poisonguard.errors",
    "poisonguard.fingerprint",
    "poisonguard.settings",
)


def collect() -> dict[str, list[str]]:
    """Give the names of each kind, in order."""
    kinds = {
        "columns": _columns(),
        "indexes and constraints": _constraints(),
        "Celery tasks": _tasks(),
        "settings": _settings(),
        "API": _api(),
        "problems": _problems(),
        "URLs": _urls(),
        "literals": _literals(),
        "SDK": _sdk(),
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
        yield getattr(kind, "problem", "") or kind.__name__
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
    listed = subprocess.run(
        ["git", "ls-files", *(f"{source}/*.py" for source in SOURCES)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for line in listed.splitlines():
        if "migrations" not in line and (ROOT / line).exists():
            yield ast.parse((ROOT / line).read_text())


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
        is_constant = name.isupper() and not inspect.ismodule(value)
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
