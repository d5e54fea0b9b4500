"""Find code that nothing uses; `make dead` runs it as a module.

Vulture compares names: a name that is bound and never read is dead. It reads only
Python, so this adds the names in templates, those that strings spell, as settings do,
and the fixtures that tests take. The product is read alone first, because code that
only tests call is dead too; then the tests are read with it.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from vulture.core import Item, Vulture

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("manage.py", "apps", "poisonweb", "sdk", "spark")
TESTS = ("benchmarks", "tests")
TAG = re.compile(r"\{%.*?%\}|\{\{.*?\}\}", re.DOTALL)
NAME = re.compile(r"[A-Za-z_]\w*")
# A name, a path as in settings, or a field as in queries, such as `-topic__name`.
SPELLED = re.compile(r"-?[A-Za-z_]\w*([.:][A-Za-z_]\w*)*")
# These decorators register what they decorate.
REGISTERING = [
    *("@app.after_request", "@app.before_request", "@receiver", "@register"),
    *("@register.filter", "@register.simple_tag", "@worker_ready.connect"),
]

# What no source shows to be used, by reason, as `file:name` or, with vulture's kind of
# it, `file:kind name`; `*` is any text.
ALLOWED: dict[str, tuple[str, ...]] = {
    "Django, allauth, Celery and the packages of the API read settings": (
        *(
            "poisonweb/settings.py:[A-Z]*",
            "benchmarks/_product_settings_with_*.py:[A-Z]*",
        ),
    ),
    "Django reads these of modules, models, apps, commands, fields and lookups": (
        *("*:urlpatterns", "poisonweb/urls.py:handler[45]0[034]"),
        *("*/models*:Meta", "*/models*:constraints", "*/models.py:abstract"),
        *("*/apps.py:*Config", "*/commands/*.py:requires_system_checks"),
        *(
            "apps/bookmarks/runs_of_settled_positions.py:db_type",
            "apps/bookmarks/runs_of_settled_positions.py:*_prep_value",
        ),
        *(
            "apps/bookmarks/runs_of_settled_positions.py:from_db_value",
            "apps/core/postgres_transaction_fields.py:db_type",
        ),
        *(
            "apps/core/postgres_transaction_fields.py:arity",
            "apps/core/postgres_transaction_fields.py:output_field",
        ),
        *(
            "apps/core/wildcard_patterns.py:as_sql",
            "apps/core/wildcard_patterns.py:lookup_name",
        ),
    ),
    "migrations use them": (
        "*/postgres_operation.py:PostgresOnlySQL",
        "apps/core/schema_changes.py:AtOnce",
        "apps/core/schema_changes.py:LockTimeoutMigration",
    ),
    "projects with the app read the model": (
        *("*/poisonguard_django/*:class *", "*/poisonguard_django/*:variable *"),
    ),
    "Django reads these of forms, class-based views, validators and its handler": (
        *("apps/dashboard/forms/*.py:valid_value", "apps/dashboard/forms/*.py:clean_*"),
        "apps/dashboard/forms/people_and_keys.py:field_order",
        "apps/dashboard/views/sign_in.py:template_name",
        "apps/dashboard/views/sign_in.py:form_class",
        "apps/dashboard/views/sign_in.py:redirect_authenticated_user",
        *("apps/team/password_rules.py:validate", "*/password_rules.py:get_help_text"),
        *(
            "poisonweb/one_thread_asgi_request_handler.py:is_async",
            "poisonweb/one_thread_asgi_request_handler.py:_handler_class",
        ),
        "poisonweb/one_thread_asgi_request_handler.py:block_size",
    ),
    "Django REST framework and drf-spectacular call these": (
        "apps/api/authentication.py:authenticate_header",
        *("apps/api/openapi.py:get_*", "apps/api/openapi.py:target_class"),
        *("apps/api/openapi.py:match_subclasses", "apps/api/openapi.py:map_*"),
        *("apps/api/openapi.py:StrictObject", "apps/api/openapi.py:NamedMembers"),
        "apps/api/serializers/base.py:run_child_validation",
        *("apps/api/openapi.py:*Scheme", "apps/api/permissions.py:has_permission"),
        *("apps/api/views/*:http_method_names", "apps/api/views/*:renderer_classes"),
        "apps/api/views/base.py:content_negotiation_class",
        *("apps/api/views/base.py:select_renderer", "apps/api/views/*:ensure_ascii"),
    ),
    "Django REST framework reads and writes the members of the wire": (
        "apps/api/serializers/*.py:variable *",
    ),
    "allauth calls these": (
        "apps/team/openid.py:get_*",
        "apps/team/openid.py:parse_token",
        "apps/team/openid.py:pre_social_login",
        *("apps/team/openid.py:on_authentication_error", "*/openid.py:openid_config"),
        "apps/team/openid.py:oauth2_adapter_class",
        "apps/team/openid.py:sociallogin_from_response",
        "apps/team/second_factor_adapter.py:get_totp_label",
    ),
    "The libraries whose objects these are read what is set on them": (
        *("*/azure_queue/azure_http_client.py:msg", "apps/core/log_formatting.py:msg"),
        *(
            "apps/core/log_formatting.py:exc_text",
            "*/management_api_client.py:pool_classes_by_scheme",
        ),
        *(
            "poisonweb/form_and_large_body_process.py:should_exit",
            "tests/*:should_exit",
        ),
        "tests/sdk/outbox/executed_statements.py:cursor_factory",
        "*/locks/zookeeper.py:wake_event",
        "sdk/poisonguard/outbox/publishers/pika.py:tcp_options",
        "sdk/poisonguard/outbox/publishers/pika.py:stack_timeout",
        "apps/redelivery/gateway/soap_envelopes.py:Start*Handler",
        *("tests/conftest.py:_fixture_*", "tests/*:raise_request_exception"),
        *("tests/integration/test_prepare_command.py:[A-Z]*", "tests/*:ROOT_URLCONF"),
        *(
            "tests/random_seed_plugin.py:*_seed",
            "tests/postgres_and_redis_plugin.py:dont_write_bytecode",
        ),
        "tests/dead_code.py:used_names",
        "tests/integration/test_password_guessing_delays.py:algorithm",
    ),
    "Uvicorn and asyncio use these of protocols": (
        "poisonweb/gateway_http_protocol.py:eof_received",
        "poisonweb/gateway_http_protocol.py:expect_100_continue",
        "poisonweb/gateway_http_protocol.py:waiting_for_100_continue",
    ),
    "The standard library calls these of servers and parsers": (
        *("*:do_[A-Z]*", "*:log_message", "*:handle_*", "*:daemon_threads"),
        *("*:protocol_version", "sdk/poisonguard/testing/web.py:allow_reuse_address"),
        "sdk/poisonguard/testing/web.py:request_queue_size",
        "sdk/poisonguard/testing/web.py:disable_nagle_algorithm",
    ),
    "The client of AMPS calls these of bookmark stores and authenticators": (
        "*/amps/bookmark_store.py:*discard*",
        "*/amps/bookmark_store.py:[gs]et_*",
        "tests/amps/test_mister_yuck_list_after_fail_over.py:completed",
    ),
    "SQL reads or writes these columns": (
        *("apps/*/models*:captured_xid", "apps/poison/models/messages.py:folds"),
        "apps/team/models.py:refused_at",
        "apps/poison/models/operation_progress_and_message_holds.py:marked_at",
    ),
    "The wire has these words, though no code names them": (
        *("apps/brokers/adapter_contract.py:FSYNCED",),
        "sdk/poisonguard/contract.py:OVERSIZE",
    ),
    "Applications call these of the SDK": (
        *("sdk/poisonguard/__init__.py:__getattr__", "sdk/poisonguard/guard.py:wrap"),
        *("sdk/poisonguard/outcome.py:duty", "*/dedupe/postgres.py:forget_async"),
        *("sdk/poisonguard/readers/*.py:*Reader", "*/in_flight_journal.py:__setitem__"),
        "*/locks/*.py:ZooKeeperLocks",
        "sdk/poisonguard/outbox/sweeping/sweeper.py:quarantined_count",
    ),
    "Tests of applications, or ours, let these doubles misbehave": (
        "sdk/poisonguard/testing/__init__.py:*",
        *(
            "sdk/poisonguard/testing/fake_server_faults.py:*",
            "sdk/poisonguard/testing/fake_server_skip_list.py:*",
        ),
        *("apps/brokers/adapters/memory.py:go_away", "*/memory.py:come_back"),
        "*/memory.py:stop_answering",
        "*/memory.py:advance",
        "*/memory.py:receive_again",
    ),
    "pytest reads these": (
        "tests/*:pytestmark",
        "tests/*:pytest_*",
        "tests/*conftest.py:collect_ignore",
        *(
            "tests/conftest.py:django_db_modify_db_settings",
            "tests/conftest.py:django_db_keepdb",
        ),
    ),
    "The log shows all fields of these": (
        *(
            "tests/acceptance/test_request_and_dead_letter_floods.py:after_mib",
            "*/test_request_and_dead_letter_floods.py:well_after",
        ),
    ),
}


def main() -> int:
    product, tests = _python_files(PRODUCT), _python_files(TESTS)
    every = [*product, *tests]
    items = [
        *_unused(product, PRODUCT, _template_names() | _names(product, _spelled)),
        *_unused(every, TESTS, _names(every, _spelled) | _names(tests, _fixtures)),
    ]
    allowed = [pattern for patterns in ALLOWED.values() for pattern in patterns]
    lines = [
        *(
            f"{_file(item)}:{item.first_lineno}: unused {item.typ} {item.name}"
            for item in items
            if not any(_is_allowed(item, pattern) for pattern in allowed)
        ),
        *(
            f"tests/dead_code.py: allows {pattern}, which is used or is gone"
            for pattern in allowed
            if not any(_is_allowed(item, pattern) for item in items)
        ),
    ]
    sys.stderr.write("".join(f"{line}\n" for line in lines))
    return 1 if lines else 0


def _file(item: Item) -> Path:
    file: Path = item.filename.relative_to(ROOT)
    return file


def _is_allowed(item: Item, pattern: str) -> bool:
    places = (f"{_file(item)}:{item.name}", f"{_file(item)}:{item.typ} {item.name}")
    return any(fnmatchcase(place, pattern) for place in places)


def _python_files(roots: Iterable[str]) -> list[Path]:
    """Return all Python files but migrations, which stay as released."""
    places = [ROOT / root for root in roots]
    files = [place for place in places if place.is_file()]
    files += (file for place in places for file in sorted(place.rglob("*.py")))
    return [file for file in files if "migrations" not in file.parts]


def _unused(
    files: list[Path], roots: tuple[str, ...], used: set[str]
) -> Iterator[Item]:
    """Return names that no file uses, if defined in one of `roots`."""
    finder = Vulture(ignore_decorators=REGISTERING)
    finder.used_names |= used
    finder.scavenge(files)
    for item in finder.get_unused_code():
        if _file(item).parts[0] in roots:
            yield item


def _template_names() -> set[str]:
    files = (file for file in (ROOT / "templates").rglob("*") if file.is_file())
    tags = (tag for file in files for tag in TAG.findall(file.read_text()))
    return {name for tag in tags for name in NAME.findall(tag)}


def _names(files: list[Path], find: Callable[[ast.AST], Iterable[str]]) -> set[str]:
    trees = (ast.parse(file.read_text()) for file in files)
    return {name for tree in trees for node in ast.walk(tree) for name in find(node)}


def _spelled(node: ast.AST) -> Iterable[str]:
    match node:
        case ast.Constant(value=str(text)) if SPELLED.fullmatch(text):
            return {*NAME.findall(text), *NAME.findall(text.replace("__", "."))}
        case _:
            return ()


def _fixtures(node: ast.AST) -> Iterable[str]:
    """Return the fixtures that tests take by an argument, or that every test gets."""
    match node:
        case ast.arg(arg=name):
            return (name,)
        case ast.FunctionDef(name=name, decorator_list=[*decorators]):
            is_automatic = any("autouse=True" in ast.unparse(d) for d in decorators)
            return (name,) if is_automatic else ()
        case _:
            return ()


if __name__ == "__main__":
    sys.exit(main())
