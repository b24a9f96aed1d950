"""The filter of system calls of the bubblewrap sandbox, as a program for the kernel.

It refuses what namespaces and limits leave open: memory that no limit counts (memory files, System V segments), new
namespaces, tracing and reading of other processes, kernel keyrings, io_uring, asynchronous I/O, which is counted for
the whole machine, leaving the processors one was given, and kinds of sockets that a network namespace does not hold,
such as those to the host of a virtual machine.

Source: Linux, Documentation/userspace-api/seccomp_filter.rst; numbers from the system call tables of the kernel.
"""

from __future__ import annotations

import errno
import platform
import struct

from stacx_core.errors import ConfigError

_MACHINES = ("x86_64", "aarch64")
_REFUSED = """
memfd_create 319 279
memfd_secret 447 447
shmget 29 194
semget 64 190
msgget 68 186
ptrace 101 117
process_vm_readv 310 270
process_vm_writev 311 271
unshare 272 97
setns 308 268
mount 165 40
umount2 166 39
pivot_root 155 41
open_tree 428 428
move_mount 429 429
fsopen 430 430
mount_setattr 442 442
keyctl 250 219
add_key 248 217
request_key 249 218
bpf 321 280
perf_event_open 298 241
userfaultfd 323 282
kexec_load 246 104
open_by_handle_at 304 265
sched_setaffinity 203 122
io_uring_setup 425 425
io_uring_enter 426 426
io_uring_register 427 427
io_setup 206 0
"""
"""Name of each call and its number on each machine."""
_SOCKET = (41, 198)
_FAMILIES = (1, 2, 10, 16)
"""AF_UNIX, AF_INET, AF_INET6 and AF_NETLINK."""
_CLONE = (56, 220)
_CLONE3 = 435
_AUDIT_ARCH = (0xC000003E, 0xC00000B7)
_NEW_NAMESPACES = 0x7E020000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET."""
_X32 = 0x40000000

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _FAIL = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16


def seccomp_program(machine: str = "") -> bytes:
    """The filter for a kind of processor, this machine's by default.

    Raises:
        ConfigError: The system calls of this kind are not known.
    """
    machine = machine or platform.machine()
    if machine not in _MACHINES:
        raise ConfigError(
            f"the bubblewrap sandbox knows the system calls of {' and '.join(_MACHINES)}, not of {machine!r}",
            "use the docker sandbox here",
        )
    column = _MACHINES.index(machine)
    fail, missing = _FAIL | errno.EPERM, _FAIL | errno.ENOSYS
    code = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, _AUDIT_ARCH[column]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        *_when(_AT_LEAST, _X32, missing),
        # The C library falls back from clone3, whose flags a filter cannot see, to clone.
        *_when(_EQUAL, _CLONE3, missing),
    ]
    for line in _REFUSED.split("\n")[1:-1]:
        code += _when(_EQUAL, int(line.split()[1 + column]), fail)
    code += [
        (_EQUAL, 0, 2 * len(_FAMILIES) + 2, _SOCKET[column]),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        *(step for family in _FAMILIES for step in _when(_EQUAL, family, _ALLOW)),
        (_RETURN, 0, 0, _FAIL | errno.EAFNOSUPPORT),
        (_EQUAL, 0, 3, _CLONE[column]),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        *_when(_ANY_BIT, _NEW_NAMESPACES, fail),
        (_RETURN, 0, 0, _ALLOW),
    ]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


def _when(test: int, value: int, outcome: int) -> list[tuple[int, int, int, int]]:
    """Return the outcome where the test holds."""
    return [(test, 0, 1, value), (_RETURN, 0, 0, outcome)]
