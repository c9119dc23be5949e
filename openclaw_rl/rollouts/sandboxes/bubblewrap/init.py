"""The first processes of a bubblewrap sandbox: a POSIX shell that starts others on command, and above it one that
adopts orphans and ends with it.

They stay small (about 200 KiB each) and need only a shell and `setsid`. Commands arrive on stdin, one line of shell
each; messages go to stdout, one line each:

    ready                   it reads its stdin
    started ID PID          a process has been started, and has its pipes
    ended ID CODE           it has ended
    cleared                 all have been killed
    held                    all have been stopped

A process's pipes are two FIFOs made from outside, `NAME.i` and `NAME.o`, in a folder that is read-only inside (a FIFO
in it can still be written to). Everything is a child of this shell, so nothing started later can be less confined. IDs
are random and never in an argument list, so that a process inside can't forge messages about others.

All processes of a sandbox are one user, and a user may write into the memory and open the files of his processes
(/proc/PID/mem, /proc/PID/fd). So the shell is a copy that can be executed but not read: the kernel makes neither such a
process nor its forks accessible to their user (execve(2), prctl(2): PR_SET_DUMPABLE) until they execute another
program. A process started here inherits neither the IDs nor the channel.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

#: Path of the FIFOs inside.
CONTROL = "/run/sandbox"
#: The shell, named as such: busybox looks at its name.
SHELL = "/etc/sandbox/sh"

#: Processes that this shell may have beyond the sandbox's limit, so that it can still act when the limit is reached.
RESERVE = 24

_SCRIPT = """\
exec 3>&1 >/dev/null 2>&1
nproc() { ulimit -u "$1" || ulimit -p "$1"; }
ulimit -c 0
@LIMITS@
begin() {
  id=$1 name=$2 folder=$3; shift 3
  (
    (
      exec <"$control/$name.i" >"$control/$name.o" 2>&1
      @NPROC@
      read -r pid rest </proc/self/stat
      echo "started $id $pid" >&3
      exec 3>&-
      while [ "$1" != -- ]; do export "$1"; shift; done
      shift
      cd "$folder" || exit 126
      unset id control
      exec $plain setsid "$@"
    )
    echo "ended $id $?" >&3
  ) &
}
control=@CONTROL@
# What a shell starts in the background ignores interrupts, and so would all that it starts, if nobody undid it.
plain=
if env --default-signal=INT true; then plain="env --default-signal=INT,QUIT"; fi
nl='
'
# The shell that waits here reaps all that comes to process 1.
(
  echo ready >&3
  while IFS= read -r line; do eval "$line"; done
)
exit $?
"""


def script(*, processes: int | None, memory: int | None) -> str:
    """Make the script of the first shell.

    Args:
        processes: limit by RLIMIT_NPROC; None: limited by other means.
        memory: bytes of address space of each process; None: limited by other means.
    """
    limits, nproc = [], ":"
    if processes is not None:
        limits.append(f"nproc {processes + RESERVE}")
        nproc = f"nproc {processes} 2>/dev/null"
    if memory is not None:
        limits.append(f"ulimit -v {memory // 1024}")
    return (_SCRIPT.replace("@LIMITS@", "\n".join(limits)).replace("@NPROC@", nproc)
            .replace("@CONTROL@", CONTROL))


def begin(identity: str, name: str, argv: Sequence[str], environment: Mapping[str, str], folder: str) -> bytes:
    """The command that starts a process.

    Raises:
        ValueError: there is a NUL in an argument, or a variable's name is invalid.
    """
    for key in environment:
        if not key.isidentifier() or not key.isascii():
            raise ValueError(f"{key!r} is not the name of a variable")
    words = [*(f"{key}={value}" for key, value in environment.items()), "--", *argv]
    if any("\0" in word for word in (*words, folder)):
        raise ValueError("an argument has a NUL in it")
    line = " ".join(["begin", identity, name, *map(_quote, (folder, *words))])
    return line.encode("utf-8", "surrogateescape") + b"\n"


def end(pid: int) -> bytes:
    """The command that kills a process and its children, except those in sessions of their own."""
    # It may not have its own session yet.
    return b"kill -9 -%d || kill -9 %d\n" % (pid, pid)


#: The commands that kill, stop and continue everything but the shell itself. Killed processes count until reaped.
END_ALL = b"kill -9 -1; wait; n=0; while [ $n -lt 50000 ] && kill -0 -1; do n=$((n+1)); done; echo cleared >&3\n"
PAUSE = b"kill -STOP -1; echo held >&3\n"
RESUME = b"kill -CONT -1\n"


def _quote(word: str) -> str:
    # The shell reads a line at a time, so a newline is passed by a variable.
    return shlex.quote(word).replace("\n", "'\"$nl\"'")
