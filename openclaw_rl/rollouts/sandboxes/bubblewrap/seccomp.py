"""System call filter of bubblewrap sandboxes, as classic BPF (seccomp(2)).

Namespaces hide most of the host; the rest is refused here: sockets that know no network namespace (vsock
reaches the hypervisor), keys, tracing, new user namespaces with their power over mounts, writing into a terminal's
input, and interfaces of the kernel that an ordinary program never calls.
"""

from __future__ import annotations

import errno
import platform
import struct

_LOAD, _EQUAL, _ANY, _GREATER, _RETURN = 0x20, 0x15, 0x45, 0x35, 0x06
_KILL, _ERROR, _ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
_NUMBER, _ARCH, _ARG0, _ARG1 = 0, 4, 16, 24  # offsets in struct seccomp_data; the arguments' low halves
_NEW_NAMESPACES = 0x7E020000  # CLONE_NEWNS, CGROUP, UTS, IPC, USER, PID and NET
_SOCKETS = (1, 2, 10, 16)  # AF_UNIX, AF_INET, AF_INET6, AF_NETLINK
_TERMINAL = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX

#: (AUDIT_ARCH, clone, clone3, socket, ioctl, refused: ...)
_ARCHITECTURES = {
    "x86_64": (0xC000003E, 56, 435, 41, 16, {
        "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312, "pidfd_getfd": 438,
        "add_key": 248, "request_key": 249, "keyctl": 250, "bpf": 321, "perf_event_open": 298, "userfaultfd": 323,
        "unshare": 272, "setns": 308, "mount": 165, "umount2": 166, "pivot_root": 155, "chroot": 161,
        "open_tree": 428, "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433,
        "mount_setattr": 442, "syslog": 103, "kexec_load": 246, "kexec_file_load": 320, "init_module": 175,
        "finit_module": 313, "delete_module": 176, "open_by_handle_at": 304, "name_to_handle_at": 303,
        "quotactl": 179, "swapon": 167, "swapoff": 168, "reboot": 169, "acct": 163, "settimeofday": 164,
        "clock_settime": 227, "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427,
        "lookup_dcookie": 212, "iopl": 172, "ioperm": 173}),
    "aarch64": (0xC00000B7, 220, 435, 198, 29, {
        "ptrace": 117, "process_vm_readv": 270, "process_vm_writev": 271, "kcmp": 272, "pidfd_getfd": 438,
        "add_key": 217, "request_key": 218, "keyctl": 219, "bpf": 280, "perf_event_open": 241, "userfaultfd": 282,
        "unshare": 97, "setns": 268, "mount": 40, "umount2": 39, "pivot_root": 41, "chroot": 51,
        "open_tree": 428, "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433,
        "mount_setattr": 442, "syslog": 116, "kexec_load": 104, "kexec_file_load": 294, "init_module": 105,
        "finit_module": 273, "delete_module": 106, "open_by_handle_at": 265, "name_to_handle_at": 264,
        "quotactl": 60, "swapon": 224, "swapoff": 225, "reboot": 142, "acct": 89, "settimeofday": 170,
        "clock_settime": 112, "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427,
        "lookup_dcookie": 18}),
}


def program(machine: str | None = None) -> bytes:
    """The filter as an array of struct sock_filter; empty for an unknown architecture."""
    known = _ARCHITECTURES.get(machine or platform.machine())
    if known is None:
        return b""
    arch, clone, clone3, socket, ioctl, refused = known
    code: list[tuple[int, int, int, int]] = [(_LOAD, 0, 0, _ARCH), (_EQUAL, 1, 0, arch), (_RETURN, 0, 0, _KILL),
                                             (_LOAD, 0, 0, _NUMBER)]
    # x32 calls have the same architecture, and a flag in their number.
    code += [(_GREATER, 0, 1, 0x40000000), _refuse(errno.ENOSYS)]
    for number in sorted(refused.values()):
        code += [(_EQUAL, 0, 1, number), _refuse(errno.EPERM)]
    # Its flags are in memory that a filter can't read; libraries fall back to clone.
    code += [(_EQUAL, 0, 1, clone3), _refuse(errno.ENOSYS)]
    refuse, allow = _refuse(errno.EPERM), (_RETURN, 0, 0, _ALLOW)
    code += [(_EQUAL, 0, 4, clone), (_LOAD, 0, 0, _ARG0), (_ANY, 0, 1, _NEW_NAMESPACES), refuse, allow]
    families, requests = len(_SOCKETS), len(_TERMINAL)
    code += [(_EQUAL, 0, families + 3, socket), (_LOAD, 0, 0, _ARG0)]
    code += [(_EQUAL, families - at, 0, family) for at, family in enumerate(_SOCKETS)]
    code += [_refuse(errno.EAFNOSUPPORT), allow]
    code += [(_EQUAL, 0, requests + 3, ioctl), (_LOAD, 0, 0, _ARG1)]
    code += [(_EQUAL, requests - 1 - at, int(at == requests - 1), request) for at, request in enumerate(_TERMINAL)]
    code += [refuse, allow, allow]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


def _refuse(number: int) -> tuple[int, int, int, int]:
    return (_RETURN, 0, 0, _ERROR | number)
