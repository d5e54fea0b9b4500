"""Parse exceptions out of a stack, where no header names them."""

from __future__ import annotations

import re
from collections.abc import Iterator

# Stacks are read up to here: the wrapping exceptions come first.
_LIMIT = 262_144
_TYPE = r"(?>(?:[A-Za-z_$][\w$]*+\.)+)[A-Za-z_$][\w$]*+"
_JAVA = re.compile(rf"(?:Caused by: )?({_TYPE})(?:: (.*))?")
_NAME = re.compile(r"(?<![\w.$])[\w.$+`]+")


def java(stack: str) -> Iterator[tuple[str, str]]:
    """Yield type and message of each exception in a header's Java stack.

    The outermost one comes first.
    """
    for number, line in enumerate(stack[:_LIMIT].splitlines()):
        if number == 0 or line.startswith("Caused by: "):
            match = _JAVA.fullmatch(line.rstrip())
            if match:
                yield match[1], match[2] or ""


def dotnet(text: str) -> tuple[str, str]:
    """Return type and message of a .NET stack trace's first exception, or "" twice."""
    for line in text[:_LIMIT].splitlines():
        for name in _NAME.finditer(line):
            if "." in name[0] and name[0].endswith("Exception"):
                words = line[name.end() :]
                return name[0], words[2:].rstrip() if words.startswith(": ") else ""
    return "", ""
