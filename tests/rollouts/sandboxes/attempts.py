"""Ways out of a sandbox, as programs that are run in it. Each ends with a line `refused: WHY` or `ESCAPED: HOW`."""

from __future__ import annotations

from dataclasses import dataclass

from openclaw_rl.rollouts.sandboxes.interface import WORK

_TRY = '''
import ctypes, errno, os, socket, subprocess, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    ctypes.set_errno(0)
    if libc.syscall(number, *arguments) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
def output(*argv):
    done = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise OSError((done.stderr or done.stdout).strip().splitlines()[-1] if done.stderr or done.stdout else "failed")
    return done.stdout.strip()
try:
%s
except (OSError, ValueError, subprocess.SubprocessError) as error:
    print("refused:", getattr(error, "strerror", None) or error)
'''


@dataclass(frozen=True, slots=True)
class Attempt:
    """One of them. `{port}`, `{socket}`, `{abstract}`, `{secret}`, `{home}` and `{pid}` in the body are the host's,
    `{work}` is the sandbox's folder."""

    name: str
    tried: str
    body: str
    outside: bool = False  #: outside a sandbox it succeeds, which a test shows

    def program(self, **host: object) -> str:
        body = self.body
        for key, value in {"work": WORK, **host}.items():
            body = body.replace(f"{{{key}}}", str(value))
        return _TRY % "\n".join("    " + line for line in body.strip().splitlines())


def _syscall(name: str, tried: str, x86_64: int, aarch64: int, arguments: str) -> Attempt:
    return Attempt(name, tried, f"call({x86_64} if os.uname().machine == 'x86_64' else {aarch64}, {arguments})\n"
                                "print('ESCAPED: the kernel did it')")


ATTEMPTS = [
    Attempt("network: the host's loopback", "TCP to a server of the host on 127.0.0.1",
            "socket.create_connection(('127.0.0.1', {port}), 3)\nprint('ESCAPED: connected')", outside=True),
    Attempt("network: outside", "a UDP packet to 192.0.2.1",
            "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('192.0.2.1', 53))\n"
            "print('ESCAPED: sent')"),
    Attempt("network: names", "looking up a name", "print('ESCAPED:', socket.gethostbyname('example.com'))"),
    Attempt("network: interfaces", "an interface beside lo",
            "names = [name for _, name in socket.if_nameindex()]\n"
            "print('refused: only lo' if names == ['lo'] else f'ESCAPED: {names}')"),
    Attempt("network: hypervisor", "a vsock, which knows no network namespace",
            "socket.socket(40, socket.SOCK_STREAM)\nprint('ESCAPED: made')"),
    Attempt("network: raw packets", "a raw socket",
            "socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)\nprint('ESCAPED: made')"),
    Attempt("unix socket of the host", "connecting to one in the host's /tmp",
            "socket.socket(socket.AF_UNIX).connect('{socket}')\nprint('ESCAPED: connected')", outside=True),
    Attempt("abstract socket of the host", "connecting to one",
            "socket.socket(socket.AF_UNIX).connect(chr(0) + '{abstract}')\nprint('ESCAPED: connected')", outside=True),
    Attempt("container engine", "docker's and podman's sockets",
            "found = [p for p in ('/run/docker.sock', '/var/run/docker.sock', '/run/podman/podman.sock', "
            "'/run/containerd/containerd.sock') if os.path.lexists(p)]\n"
            "print(f'ESCAPED: {found}' if found else 'refused: none is there')"),
    Attempt("host files: passwords", "reading /etc/shadow", "print('ESCAPED:', open('/etc/shadow').read()[:20])"),
    Attempt("host files: a user's", "reading a file in the home folder of who runs the mesh",
            "print('ESCAPED:', open('{secret}').read())", outside=True),
    Attempt("host files: by /proc", "the same by /proc/1/root and /proc/1/cwd",
            "for link in ('root', 'cwd'):\n    if os.path.exists(f'/proc/1/{link}{secret}'):\n"
            "        print('ESCAPED: it is there')\nprint('refused: not there')"),
    Attempt("host files: homes", "listing /root and /home",
            "print('ESCAPED:', os.listdir('/root'), os.listdir('/home'))"),
    Attempt("host's variables", "a secret of the server's environment",
            "print('ESCAPED: seen' if 'OPENCLAW_RL_TEST_SECRET' in os.environ else 'refused: not among the variables')",
            outside=True),
    Attempt("open files of the host", "file descriptors that came along",
            "seen = [os.readlink(f'/proc/self/fd/{fd}') for fd in os.listdir('/proc/self/fd') if int(fd) > 2 and "
            "os.path.lexists(f'/proc/self/fd/{fd}')]\n"
            "print(f'ESCAPED: {seen}' if seen else 'refused: only its own three')"),
    Attempt("host processes: seeing", "finding one in /proc",
            "seen = []\n"
            "for p in filter(str.isdigit, os.listdir('/proc')):\n"
            "    try: line = open(f'/proc/{p}/cmdline', 'rb').read()\n"
            "    except OSError: continue  # it has ended meanwhile\n"
            "    if b'openclaw-victim' in line.split(b'\\0'): seen.append(p)\n"
            "print(f'ESCAPED: {seen}' if seen else 'refused: only its own')", outside=True),
    Attempt("host processes: killing", "a signal to one by its PID",
            "os.kill({pid}, 0)\nwith open('/proc/{pid}/cmdline') as f: text = f.read()\n"
            "print('ESCAPED: sent' if 'openclaw-victim' in text else 'refused: another process of its own')",
            outside=True),
    Attempt("host processes: priority", "a higher priority", "os.nice(-5)\nprint('ESCAPED: got it')"),
    _syscall("ptrace", "tracing the sandbox's first process", 101, 117, "16, 1, 0, 0"),
    _syscall("other processes' memory", "process_vm_readv of the first process", 310, 270, "1, 0, 0, 0, 0, 0"),
    # What the first process tells is told: one that lies about exit codes makes every check pass.
    Attempt("other processes: memory", "writing \"exit code 0\" into the memory of the first processes, by /proc",
            "import re\nwhy = ''\n"
            "for other in (p for p in os.listdir('/proc') if p.isdigit() and int(p) != os.getpid()):\n"
            "    try: maps, mem = open(f'/proc/{other}/maps').read(), open(f'/proc/{other}/mem', 'r+b', 0)\n"
            "    except OSError as error:\n        why = error.strerror\n        continue\n"
            "    print('ESCAPED: opened that of', other)\n"
            "    for begin, end in re.findall(r'^([0-9a-f]+)-([0-9a-f]+) r', maps, re.M):\n"
            "        try:\n"
            "            mem.seek(int(begin, 16)); data = mem.read(int(end, 16) - int(begin, 16))\n"
            "            for found in re.finditer(rb'ended \\x82.id= \\x82.\\?=', data):\n"
            "                mem.seek(int(begin, 16) + found.end() - 4); mem.write(b'0\\x88\\0\\0')\n"
            "        except (OSError, OverflowError): pass\n"
            "print('refused:', why)"),
    Attempt("other processes: open files", "the first processes' channel to the server, by /proc/PID/fd",
            "why = ''\n"
            "for other in (p for p in os.listdir('/proc') if p.isdigit() and int(p) != os.getpid()):\n"
            "    for fd in range(5):\n"
            "        try: file = os.open(f'/proc/{other}/fd/{fd}', os.O_WRONLY | os.O_NONBLOCK)\n"
            "        except OSError as error: why = error.strerror\n"
            "        else: print('ESCAPED: opened', other, fd); os.write(file, b'ended 0 0\\n')\n"
            "print('refused:', why)"),
    Attempt("other processes: pipes", "listing them", "print('ESCAPED:', os.listdir('/run/sandbox'))"),
    Attempt("device nodes: making", "mknod of a disk", "os.mknod('{work}/disk', 0o60600, os.makedev(8, 0))\n"
            "print('ESCAPED: made')"),
    Attempt("device nodes: there", "anything but harmless ones in /dev",
            "good = {'null', 'zero', 'full', 'random', 'urandom', 'tty', 'console', 'ptmx', 'pts', 'shm', 'fd', "
            "'stdin', 'stdout', 'stderr', 'core', 'mqueue'}\nfound = set(os.listdir('/dev')) - good\n"
            "print(f'ESCAPED: {found}' if found else 'refused: none is there')", outside=True),
    Attempt("device: kernel memory", "/proc/kcore, /dev/mem",
            "for path in ('/proc/kcore', '/dev/mem'):\n    try: open(path, 'rb').read(1)\n"
            "    except OSError as error: why = error.strerror\n    else: print('ESCAPED: read', path)\n"
            "print('refused:', why)"),
    Attempt("system files: writing", "files in /usr, /etc, /dev, /run and /",
            "why = ''\n"
            "for path in ('/usr/bin/ls', '/etc/passwd', '/etc/new', '/dev/new', '/run/new', '/new', '/usr/new'):\n"
            "    try: open(path, 'a').close()\n    except OSError as error: why = error.strerror\n"
            "    else: print('ESCAPED: wrote', path)\nprint('refused:', why)"),
    Attempt("kernel settings: writing", "/proc/sys and /proc/sysrq-trigger",
            "why = ''\n"
            "for path in ('/proc/sys/kernel/core_pattern', '/proc/sys/vm/drop_caches', '/proc/sysrq-trigger'):\n"
            "    try: open(path, 'w').close()\n    except OSError as error: why = error.strerror\n"
            "    else: print('ESCAPED: opened', path)\nprint('refused:', why)"),
    Attempt("control groups: writing", "raising its own limits in /sys/fs/cgroup",
            "found = [p for p in ('/sys/fs/cgroup', '/sys/fs/cgroup/memory', '/sys/fs/cgroup/pids') "
            "if os.access(p, os.W_OK) and not os.statvfs(p).f_flag & 1]\n"
            "print(f'ESCAPED: {found}' if found else 'refused: not there or read-only')", outside=True),
    Attempt("limits: raising", "more processes than it may have",
            "import resource\nsoft, hard = resource.getrlimit(resource.RLIMIT_CORE)\n"
            "resource.setrlimit(resource.RLIMIT_CORE, (soft, hard + 1 if hard >= 0 else 1))\n"
            "print('ESCAPED: raised' if hard >= 0 else 'refused: nothing to raise')"),
    _syscall("mount", "a tmpfs over /usr", 165, 40, "b'none', b'/usr', b'tmpfs', 0, 0"),
    _syscall("mount: the new calls", "fsopen", 430, 430, "b'tmpfs', 0"),
    _syscall("user namespace", "unshare(CLONE_NEWUSER)", 272, 97, "0x10000000"),
    Attempt("user namespace by clone", "clone(CLONE_NEWUSER)",
            "number = 56 if os.uname().machine == 'x86_64' else 220\ncall(number, 0x10000000 | 17, 0, 0, 0, 0)\n"
            "print('ESCAPED: made')"),
    _syscall("other namespaces", "setns", 308, 268, "0, 0x40000000"),
    _syscall("chroot", "chroot(\"/\")", 161, 51, "b'/'"),
    Attempt("setuid programs", "su and a shell with the bit set",
            "shell = '{work}/shell'\nsubprocess.run(['cp', '/bin/bash', shell]); os.chmod(shell, 0o6755)\n"
            "ids = {output(shell, '-p', '-c', 'echo $EUID'), str(os.geteuid())}\n"
            "done = subprocess.run(['su', '-c', 'id -u'], stdin=subprocess.DEVNULL, capture_output=True, text=True)\n"
            "ids.add(done.stdout.strip())\n"
            "print(f'ESCAPED: {ids}' if '0' in ids else f'refused: it stays user {os.getuid()}')"),
    Attempt("capabilities", "any capability at all",
            "caps = [l.split()[1] for l in open('/proc/self/status') if l.startswith(('CapEff', 'CapPrm', 'CapBnd'))]\n"
            "print('refused: none' if set(caps) == {'0' * 16} else f'ESCAPED: {caps}')"),
    _syscall("keys", "keyctl: the session's keyring", 250, 219, "0, -3, 0"),
    _syscall("kernel log", "syslog: reading it", 103, 116, "3, 0, 0"),
    _syscall("performance counters", "perf_event_open", 298, 241, "0, 0, -1, -1, 0"),
    _syscall("bpf", "loading a program", 321, 280, "5, 0, 0"),
    _syscall("userfaultfd", "userfaultfd", 323, 282, "0"),
    _syscall("io_uring", "io_uring_setup, which filters don't see through", 425, 425, "1, 0"),
    _syscall("files by handle", "open_by_handle_at", 304, 265, "0, 0, 0"),
    Attempt("terminal input", "TIOCSTI, which types for who watches",
            "import fcntl, pty\nleader, follower = pty.openpty()\nfcntl.ioctl(follower, 0x5412, b'x')\n"
            "print('ESCAPED: typed')"),
]
