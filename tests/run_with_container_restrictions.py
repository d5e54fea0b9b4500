"""Run a command as in a container: no namespaces, and root with few capabilities.

`python -m tests.run_with_container_restrictions make test` takes what Docker's defaults
take: what makes or enters a namespace or mounts is refused, and root keeps fourteen of
its capabilities. It also takes what no program of ours needs: more rights by a
set-user-ID program.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys
from collections.abc import Sequence

# The numbers are those of Linux on x86-64, where Poisonweb runs.
PR_SET_SECCOMP = 22
PR_SET_NO_NEW_PRIVS = 38
SECCOMP_MODE_FILTER = 2

X86_64 = 0xC000003E
CLONE, CLONE3 = 56, 435
REFUSED = {"unshare": 272, "setns": 308, "mount": 165, "umount2": 166}
# The flags of clone that ask for a namespace of any kind.
NEW_NAMESPACE = 0x7E020000

# Offsets in what a filter sees of a call; of an argument, the lower half comes first.
NUMBER, ARCHITECTURE, FIRST_ARGUMENT = 0, 4, 16
LOAD, EQUALS, HAS_BITS, RETURN = 0x20, 0x15, 0x45, 0x06
ALLOW = 0x7FFF0000
FAIL = 0x00050000
EPERM, ENOSYS = 1, 38

CAPABILITIES = (
    *("audit_write", "chown", "dac_override", "fowner", "fsetid", "kill", "mknod"),
    *("net_bind_service", "net_raw", "setfcap", "setgid", "setpcap", "setuid"),
    "sys_chroot",
)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def forbid_namespaces() -> None:
    """Have the kernel refuse namespaces to this process and to all that it starts."""
    assert platform.machine() == "x86_64"
    instructions = b"".join(struct.pack("=HBBI", *line) for line in _filter())
    program = _Program(len(instructions) // 8, instructions)
    # Without it only who may do anything is allowed a filter.
    _prctl(PR_SET_NO_NEW_PRIVS, 1)
    _prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program))


def _filter() -> list[tuple[int, int, int, int]]:
    """Each line: what to do, lines to skip if it is so, and if it is not, a number."""
    refused = [
        line
        for number in REFUSED.values()
        for line in ((EQUALS, 0, 1, number), (RETURN, 0, 0, FAIL | EPERM))
    ]
    return [
        (LOAD, 0, 0, ARCHITECTURE),
        (EQUALS, 1, 0, X86_64),
        (RETURN, 0, 0, FAIL | ENOSYS),
        (LOAD, 0, 0, NUMBER),
        *refused,
        # Its flags are in memory, where no filter looks: everybody then asks for clone.
        (EQUALS, 0, 1, CLONE3),
        (RETURN, 0, 0, FAIL | ENOSYS),
        (EQUALS, 0, 3, CLONE),
        (LOAD, 0, 0, FIRST_ARGUMENT),
        (HAS_BITS, 0, 1, NEW_NAMESPACE),
        (RETURN, 0, 0, FAIL | EPERM),
        (RETURN, 0, 0, ALLOW),
    ]


def _prctl(*arguments: object) -> None:
    # It takes five: those that are left out would be whatever is in the registers.
    libc = ctypes.CDLL(None, use_errno=True)
    padded = (*arguments, *(0 for _ in range(5 - len(arguments))))
    if libc.prctl(*(ctypes.c_ulong(a) if isinstance(a, int) else a for a in padded)):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def command(words: Sequence[str]) -> tuple[str, ...]:
    if os.geteuid() != 0:
        return (*words,)
    capabilities = ",".join(f"+{name}" for name in CAPABILITIES)
    return (
        "setpriv",
        f"--bounding-set=-all,{capabilities}",
        "--inh-caps=-all",
        "--",
        *words,
    )


if __name__ == "__main__":
    forbid_namespaces()
    words = command(sys.argv[1:])
    os.execvp(words[0], words)
