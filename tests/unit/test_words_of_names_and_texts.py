"""The words of the tree: names are nouns of the field, sentences are plain."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.unit.test_rules_of_the_whole_tree import ROOT, tracked

# They share one parsed tree.
pytestmark = pytest.mark.together

# A participle does not say what a value is: `told` was a JSON body, a percentage, a
# date and a dozen things more.
PARTICIPLES = frozenset(
    {
        *("asked", "found", "fresh", "given", "gone", "held", "kept", "known", "left"),
        *("made", "seen", "sent", "shown", "taken", "told", "wanted"),
    }
)
EXEMPT = {
    "apps/api/serializers/position_moves.py": {"held": "a member of a review's answer"},
    "apps/api/serializers/poisons.py": {"shown": "a member of a poison"},
    "apps/api/serializers/operation_previews.py": {"taken": "a member of a preview"},
    "apps/api/serializers/poison_problems.py": {
        "sent": "a member of a problem's counts"
    },
    "apps/api/serializers/topics.py": {"held": "a member of a topic"},
    "apps/dashboard/forms/new_skip.py": {"seen": "a field that open pages send"},
    "apps/poison/models/skips.py": {"made": "a column"},
    "apps/triage/models/operations.py": {"taken": "a column"},
    "apps/poison/models/operation_progress_and_message_holds.py": {"sent": "a column"},
    "sdk/poisonguard/bookmarks.py": {"asked": "a public method of BookmarkStore"},
}
# A function says what it does, or is the noun of what it returns. A method may be a
# participle: a queryset's `failed()`, or what is reported to a class.
BARE_PARTICIPLE = re.compile(rf"[a-z]+ed|cut|chosen|{'|'.join(PARTICIPLES)}")
FUNCTIONS_EXEMPT = {
    "apps/dashboard/presentation/operation_words.py": {"deed": "a noun"},
    "sdk/poisonguard/fingerprint.py": {"normalised": "a public function"},
}
# What others say, and what the product calls it. A word of two parts is found in
# names, as in sentences, only as a whole.
OURS_OF_OTHERS = {
    "abandon": "release",
    "ack": "settle",
    "archive": "drop, or prune",
    "backend": "adapter",
    "batch job": "operation",
    "bulk": "operation",
    "callback": "handler",
    "canary": "ramp",
    "checkpoint": "position",
    "comment": "note",
    "connector": "adapter",
    "delivery count": "dequeue count",
    "dlq": "dead-letter queue",
    "dlx": "dead-letter queue",
    "driver": "adapter",
    "entity": "topic",
    "error queue": "dead-letter queue",
    "error rate": "failure rate",
    "failed message": "poison",
    "failure group": "problem",
    "ingest": "capture",
    "invalid message": "poison",
    "issue": "problem",
    "lease": "claim, or visibility timeout",
    "lock duration": "visibility timeout",
    "nack": "release",
    "offset": "bookmark",
    "park": "redrive with a target",
    "peek lock": "visibility timeout",
    "poison message": "poison",
    "poison queue": "dead-letter queue",
    "purge": "prune",
    "reap": "rescue",
    "receive count": "dequeue count",
    "relapse": "recurrence",
    "replay": "redrive",
    "rerun": "retry",
    "resubmit": "redrive",
    "seek": "move",
    "subscriber": "consumer",
    "sweep": "rescue",
    "temporary queue": "target",
}
# There the own words of brokers, and of the clients that read them, are right.
OF_BROKERS = (
    *("apps/brokers/adapters/", "apps/brokers/failure_headers/"),
    *("sdk/poisonguard/amps/", "sdk/poisonguard/readers/", "sdk/examples/"),
    *("docs/brokers/", "docs/failure-headers.md", "tests/amps/", "tests/brokers/"),
    *(
        "tests/contracts/",
        "tests/unit/brokers/",
        "tests/unit/test_framework_failure_headers.py",
    ),
)
UNIX = "Unix says so of a child process that has ended"
AUDIT = "the signed head of the audit trail"
REPLAYS = "a verb: a topic that replays hands its messages out again"
JDBC = "the class of JDBC that Spark loads"
# Another idea than ours has the word here, or a name that other processes see.
OTHER_IDEAS = {
    "archive": {
        "spark/cluster_code_shipping.py": "a zip file of the modules",
        "tests/acceptance/": "a tar file of a release, a file of classes",
        "tests/spark/test_nightly_report_on_cluster.py": "a zip file of the modules",
        "tests/unit/sample/test_history.py": "files of hours as GH Archive has them",
    },
    "backend": {"apps/team/backends.py": "Django's word: what checks a sign-in"},
    "callback": {
        "apps/dashboard/views/single_sign_on.py": "OpenID's word, and in an address",
        "apps/team/openid.py": "a method that allauth calls",
        "tests/sdk/test_retries_after_release_outcome.py": "a function that is passed",
    },
    "checkpoint": {
        **dict.fromkeys(
            ("apps/audit/", "apps/dashboard/selectors/audit_checkpoint"), AUDIT
        ),
        **dict.fromkeys(("docs/", "README.md", "CHANGELOG.md"), AUDIT),
        **dict.fromkeys(("poisonweb/env.py", "poisonweb/settings.py"), AUDIT),
        **dict.fromkeys(("tests/integration/",), AUDIT),
    },
    "comment": {"tests/unit/test_words_of_names_and_texts.py": "a comment in Python"},
    "delivery count": {"docs/lanes.md": "a verb: every delivery counts"},
    "driver": {
        **dict.fromkeys(("README.md", "CONTRIBUTING.md", "docs/operators.md"), JDBC),
        "tests/spark/secret_leaks.py": "the process that Spark calls so",
    },
    "lease": {
        "sdk/README.md": "a public setting of the SDK",
        "sdk/poisonguard/settings.py": "a public setting of the SDK",
        "tests/sdk/": "a public setting of the SDK",
    },
    "offset": {
        "docs/adr/0021": "Kafka's word, of a consumer of Kafka",
        "docs/connect-a-consumer.md": "Kafka's word, of a consumer of Kafka",
        "docs/protocol.md": "an example of what a broker calls a bookmark",
        "sdk/README.md": "Kafka's word, of a consumer of Kafka",
        "sdk/poisonguard/server/spool.py": "a place in a file, in bytes",
    },
    "reap": {
        "poisonweb/embedded/supervisor.py": UNIX,
        "sdk/poisonguard/supervision/supervisor.py": UNIX,
        "tests/run_without_leftovers.py": UNIX,
    },
    "replay": {
        "apps/api/idempotency.py": "gives an answer again, as a header of it says",
        "CHANGELOG.md": REPLAYS,
        "docs/": REPLAYS,
        "sdk/README.md": REPLAYS,
    },
    "seek": {
        "docs/connect-a-consumer.md": "Kafka's word, of a consumer of Kafka",
        "sdk/README.md": "Kafka's word, of a consumer of Kafka",
    },
}
RIDDLES = re.compile(
    r"\b([Ww]hoever|[Nn]obody|[Ss]omebody|[Aa]new|tells? of|says? of|goes again"
    r"|is none)\b"
)
UNCHANGED = {
    # A column's help text: another one needs a migration.
    "a reader that starts anew is handed old messages again",
    # Descriptions of fields of the API, where 0 stands for a window that is missing.
    "0: there is none",
    "the longest that producers may ask for; 0: there is none",
}
PRODUCT = ("apps/", "poisonweb/", "sdk/", "spark/")
# Verbs that are no nouns. Docstrings of views describe calls, in the third person.
THIRD_PERSON = re.compile(
    r"(Acts|Adds|Asks|Begins|Builds|Captures|Carries|Deletes|Describes|Does|Fails|Finds"
    r"|Gives|Handles|Holds|Keeps|Kills|Listens|Looks|Makes|Measures|Opens|Parses|Publishes"
    r"|Puts|Reads|Refuses|Remembers|Says|Sends|Settles|Stores|Takes|Tells|Waits|Writes)"
    r" (?!that\b)"
)
IN_THE_IMPERATIVE = (
    *("apps/audit", "apps/bookmarks", "apps/brokers", "apps/capture", "apps/core"),
    *("apps/dashboard", "apps/outbox", "apps/poison", "apps/redelivery"),
    *("apps/reports", "apps/team", "apps/triage"),
    *("benchmarks", "poisonweb", "sdk", "spark"),
)
TAGS = re.compile(r"\{%.*?%\}|\{\{.*?\}\}", re.DOTALL)
FENCES = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
# Code, and a single word that a sentence is about.
QUOTED = re.compile(r"`[^`]*`|\*\w+\*")
CAPITAL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
OTHERS = re.compile(rf"\b({'|'.join(OURS_OF_OTHERS)})\b")
OTHERS_IN_PROSE = re.compile(
    rf"\b({'|'.join(OURS_OF_OTHERS).replace(' ', '[ -]')})s?\b", re.IGNORECASE
)

# Declarations of JavaScript, and parameters of functions, arrows and methods.
SCRIPT_BINDINGS = re.compile(
    r"\b(?:const|let|var)\s+(?:\w+|\[[^\]]*\]|\{[^}]*\})"
    r"|\bfunction\s*\w*\s*\([^)]*\)"
    r"|\([^()]*\)\s*=>|\w+\s*=>"
    r"|^\s*(?:get |set |async )?\w+\([^()]*\)\s*\{",
    re.MULTILINE,
)
SCRIPT_NAME = re.compile(r"(?<![.\w$])[a-z]\w*")
COMMENTS = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)

parse = cache(ast.parse)


def sources() -> Iterator[tuple[str, str]]:
    """Give each Python file but migrations, which stay as they were released."""
    for file in tracked(".py"):
        name = str(file.relative_to(ROOT))
        if "/migrations/" not in name:
            yield name, file.read_text()


def prose() -> Iterator[tuple[str, str]]:
    """Give each Markdown page without its code, and the files of the containers."""
    for page in [*tracked(".md"), ROOT / "Dockerfile", ROOT / "compose.yaml"]:
        text = FENCES.sub("", page.read_text())
        yield str(page.relative_to(ROOT)), QUOTED.sub("", text)


def names_bound(tree: ast.Module) -> Iterator[str]:
    """Give each name that a file gives to something."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield name
            case ast.Attribute(attr=name, ctx=ast.Store()):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.ClassDef(name=name):
                yield CAPITAL.sub("_", name).lower()
            case ast.alias(asname=str(name)) | ast.ExceptHandler(name=str(name)):
                yield name
            case _:
                pass


def names_bound_by_script(source: str) -> Iterator[str]:
    """Give the names that a script gives to something, but members of objects."""
    for match in SCRIPT_BINDINGS.finditer(COMMENTS.sub("", source)):
        yield from SCRIPT_NAME.findall(match[0])


def functions_of(tree: ast.Module) -> Iterator[str]:
    """Give the names of a file's functions, without methods."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name


def words_of(name: str) -> str:
    """Write a name as words; `_delivery_count` is "delivery count"."""
    return name.lower().replace("_", " ").strip()


def test_no_name_is_a_bare_participle() -> None:
    riddles = {
        f"{file}: {name}"
        for file, source in sources()
        for name in names_bound(parse(source))
        if name.strip("_") in PARTICIPLES - EXEMPT.get(file, {}).keys()
    }

    assert riddles == set()


def test_each_exemption_is_needed() -> None:
    bound = {file: set(names_bound(parse(source))) for file, source in sources()}

    for file, names in EXEMPT.items():
        assert names.keys() <= bound[file]


def test_no_name_of_a_script_is_a_bare_participle() -> None:
    source = (ROOT / "static" / "js" / "app.js").read_text()

    assert PARTICIPLES.intersection(names_bound_by_script(source)) == set()


@pytest.mark.parametrize(
    "source",
    [
        "const told = 1;",
        "let [low, told] = pair;",
        "const { at, told } = box;",
        "function told(a) {}",
        "function act(a, told = {}) {}",
        "(a, told) => a",
        "told => 1",
        "  act(told) {",
        "for (const [key, told] of rows) {",
    ],
)
def test_each_binding_of_a_script_is_read(source: str) -> None:
    assert "told" in set(names_bound_by_script(source))


def test_texts_comments_and_members_of_scripts_are_no_bindings() -> None:
    source = 'say("told"); // told\n/* told = 1; */ act(box.told); x = told;'

    assert "told" not in set(names_bound_by_script(source))


def test_no_public_function_of_the_product_is_a_bare_participle() -> None:
    riddles: dict[str, set[str]] = {}
    for file, source in sources():
        if file.startswith(PRODUCT):
            for name in filter(BARE_PARTICIPLE.fullmatch, functions_of(parse(source))):
                riddles.setdefault(file, set()).add(name)

    assert riddles == {file: set(names) for file, names in FUNCTIONS_EXEMPT.items()}


def test_no_module_is_named_by_a_bare_participle() -> None:
    stems = {file: Path(file).stem for file, _ in sources()}

    assert [file for file, stem in stems.items() if stem in PARTICIPLES] == []


@cache
def words_of_others() -> dict[tuple[str, str], list[str]]:
    """Give where words of others are: names and excerpts, by file and word."""
    uses = dict[tuple[str, str], list[str]]()
    for file, source in sources():
        for name in names_bound(parse(source)):
            for word in OTHERS.findall(words_of(name)):
                uses.setdefault((file, word), []).append(name)
    for page, text in prose():
        for match in OTHERS_IN_PROSE.finditer(text):
            word = match[1].lower().replace("-", " ")
            uses.setdefault((page, word), []).append(excerpt(text, match))
    return {
        use: where for use, where in uses.items() if not use[0].startswith(OF_BROKERS)
    }


def test_no_name_or_page_uses_a_word_of_others_for_one_of_ours() -> None:
    wrong = [
        f"{file}: {text}: say {OURS_OF_OTHERS[word]}"
        for (file, word), texts in words_of_others().items()
        if not file.startswith(tuple(OTHER_IDEAS.get(word, ())))
        for text in texts
    ]

    assert wrong == []


def test_each_other_idea_is_there_and_has_a_reason() -> None:
    for word, files in OTHER_IDEAS.items():
        for beginning, reason in files.items():
            assert reason
            assert any(
                file.startswith(beginning)
                for file, other in words_of_others()
                if other == word
            ), f"{word} is no longer in {beginning}"


def test_no_docstring_or_comment_is_a_riddle() -> None:
    riddles = {
        f"{file}: {riddle}"
        for file, source in sources()
        for riddle in riddles_in(sentences(source))
    }

    assert riddles == set()


def test_no_text_of_the_product_is_a_riddle() -> None:
    """Errors, messages, labels and log lines; those of tests are often hostile."""
    riddles = {
        f"{file}: {riddle}"
        for file, source in sources()
        if file.startswith(PRODUCT)
        for riddle in riddles_in(texts(source))
    }

    assert riddles == set()


def test_no_page_is_a_riddle() -> None:
    riddles = {
        f"{page.relative_to(ROOT)}: {riddle}"
        for page in tracked(".html")
        for riddle in riddles_in([TAGS.sub("", page.read_text())])
    }

    assert riddles == set()


def test_no_sentence_of_the_documents_is_a_riddle() -> None:
    riddles = {
        f"{page}: {riddle}" for page, text in prose() for riddle in riddles_in([text])
    }

    assert riddles == set()


def test_no_docstring_begins_in_the_third_person() -> None:
    """It begins with an imperative verb, or with the noun that it describes."""
    wrong = {
        f"{file}: {docstring[:60]}"
        for file, source in sources()
        if file.startswith(IN_THE_IMPERATIVE)
        for docstring in docstrings(source)
        if THIRD_PERSON.match(docstring)
    }

    assert wrong == set()


def test_no_line_of_a_configuration_is_a_riddle() -> None:
    """Comments, and names such as those of the import contracts."""
    riddles = {
        f"{file.relative_to(ROOT)}: {riddle}"
        for file in tracked(".toml")
        for riddle in riddles_in(file.read_text().splitlines())
    }

    assert riddles == set()


def docstrings(source: str) -> Iterator[str]:
    for node in ast.walk(parse(source)):
        if isinstance(
            node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        ):
            yield ast.get_docstring(node) or ""


def sentences(source: str) -> Iterator[str]:
    """Give the docstrings and the comments of a file."""
    yield from docstrings(source)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


def texts(source: str) -> Iterator[str]:
    """Give each text in a file, also the parts of those that are formatted."""
    for node in ast.walk(parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def riddles_in(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        for match in RIDDLES.finditer(text):
            if text not in UNCHANGED:
                yield excerpt(text, match)


def excerpt(text: str, match: re.Match[str]) -> str:
    return text[max(0, match.start() - 30) : match.end() + 20]
