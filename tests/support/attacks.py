"""Programs that try to leave the sandbox. Each prints `escaped` with what it achieved, and `tried` at its end.

They run after PRELUDE, which reads as `at` what the test prepared: `secret`, `socket` and `datagrams`, paths; `folder`,
which the files of the test are in; `port`, where it listens; `pid`, a process of it; `packages`, folders with Python
packages.
"""

PRELUDE = """
import contextlib, ctypes, errno, fcntl, json, os, resource, shutil, signal, socket, stat, struct, subprocess, sys, time
from pathlib import Path
from types import SimpleNamespace
at = SimpleNamespace(**json.load(sys.stdin))
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
refused = contextlib.suppress(OSError)
def escaped(what):
    print("escaped:", what, flush=True)
"""

ATTACKS = {
    "connects to the network": """
for family, address in ((socket.AF_INET, ("127.0.0.1", at.port)), (socket.AF_INET, ("1.1.1.1", 53))):
    with refused, socket.socket(family) as wire:
        wire.settimeout(1)
        wire.connect(address)
        escaped(address)
""",
    "sends packets": """
for kind in (socket.SOCK_DGRAM, socket.SOCK_RAW):
    with refused, socket.socket(socket.AF_INET, kind, socket.IPPROTO_UDP) as wire:
        wire.sendto(b"x", ("127.0.0.1", at.port))
        escaped(kind)
with refused, socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as wire:
    escaped("netlink")
""",
    "connects to a service of the machine": """
for address in (at.socket, "\\0areal-like-test"):
    with refused, socket.socket(socket.AF_UNIX) as wire:
        wire.connect(address)
        escaped(address)
for address in (at.datagrams, "\\0areal-like-test"):
    with refused:
        wire, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        wire.sendto(b"x", address)
        escaped(("datagram", address))
""",
    "reads a file of the run": """
for path in (at.secret, "/etc/passwd", "/etc/hosts", f"/proc/self/root{at.secret}", f"/proc/{at.pid}/root{at.secret}"):
    with refused:
        escaped(Path(path).read_text())
""",
    "lists the machine's folders": """
for path in (at.folder, "/root", "/home", "/etc", "/var", "/work"):
    with refused:
        found = set(os.listdir(path)) - {".pyenv", "alternatives", "ld.so.cache"}
        if found:
            escaped((path, found))
""",
    "reads the environment of other processes": """
with refused:
    escaped(Path("/proc/self/environ").read_bytes())
for pid in (os.getppid(), at.pid, 1):
    for name in ("environ", "cmdline", "maps", "mem", "fd", "cwd"):
        with refused:
            content = Path(f"/proc/{pid}/{name}").read_bytes()
            escaped((pid, name, content[:200]))
        with refused:
            escaped((pid, name, os.readlink(f"/proc/{pid}/{name}")))
        with refused:
            escaped((pid, name, os.listdir(f"/proc/{pid}/{name}")))
""",
    "looks for the token in its environment": """
given = set(os.environ) - {"PATH", "LANG", "LC_ALL", "HOME", "TMPDIR", "PWD", "LC_CTYPE"}
if given or "only-in-tests" in repr(os.environ):
    escaped(given)
""",
    "uses inherited descriptors": """
for number in range(3, 64):
    with refused:
        os.fstat(number)
        escaped(number)
for number in (0, 1, 2):
    if not (stat.S_ISFIFO(os.fstat(number).st_mode) or number == 0):
        escaped(number)
with refused:
    os.write(0, b"x")
    escaped("its input can be written")
""",
    "writes outside of its folder": """
for path in (at.folder, "/", "/usr", "/usr/bin", "/etc", "/root", "/dev/shm", "/var/tmp", sys.prefix, "..", "/tmp"):
    if os.path.realpath(path) == os.getcwd():
        continue
    with refused:
        Path(path, "areal-like-attack").write_text("x")
        escaped(path)
    with refused:
        os.mkdir(f"{path}/areal-like-folder")
        escaped(path)
for change in (
    lambda: Path(at.secret).write_text("x"),
    lambda: os.truncate(at.secret, 0),
    lambda: os.open(at.secret, os.O_RDONLY | os.O_TRUNC),
    lambda: os.unlink(at.secret),
    lambda: os.rename(at.secret, "mine"),
    lambda: os.chmod(at.secret, 0o777),
    lambda: os.chown(at.secret, os.getuid(), -1),
    lambda: os.utime(at.secret, (0, 0)),
    lambda: os.setxattr(at.secret, "user.x", b"x"),
    lambda: os.remove(sys.executable),
    lambda: os.chmod("/usr/bin/env", 0o4777),
):
    with refused:
        change()
        escaped("changed a file")
""",
    "follows links that it makes": """
with refused:
    os.symlink(at.secret, "soft")
with refused:
    escaped(Path("soft").read_text())
with refused:
    Path("soft").write_text("x")
    escaped("written through a link")
with refused:
    os.link(at.secret, "hard")
    escaped("hard link")
with refused:
    os.symlink(at.folder, "folder")
    Path("folder/areal-like-attack").write_text("x")
    escaped("written through a folder")
""",
    "leaves links for whoever removes its folder": """
os.symlink(at.folder, "folder")
os.mkdir("a", 0)
deep = "deep"
for _ in range(300):
    os.mkdir("d")
    os.chdir("d")
os.symlink(at.folder, "folder")
""",
    "becomes root": """
for change in (
    lambda: os.setuid(0),
    lambda: os.setresuid(0, 0, 0),
    lambda: os.setgroups([0]),
    lambda: os.chroot("."),
    lambda: os.mknod("disk", 0o600 | stat.S_IFBLK, os.makedev(254, 0)),
):
    with refused:
        change()
        escaped("did what only root does")
if os.getuid() == 0 or os.geteuid() == 0:
    escaped("it is root")
with refused:
    for program in ("/usr/bin/su", "/usr/bin/mount", "/usr/bin/passwd"):
        if Path(program).exists():
            done = subprocess.run([program, "-c", "id -u"], capture_output=True, stdin=subprocess.DEVNULL, text=True)
            if done.stdout.strip() == "0":
                escaped(program)
shutil.copyfile("/usr/bin/id", "id")
with refused:
    os.chmod("id", 0o755)
with refused:
    os.chmod("id", 0o4755)
with refused:
    if subprocess.run(["./id", "-u"], capture_output=True, text=True).stdout.strip() == "0":
        escaped("a program with another user's rights")
""",
    "traces other processes": """
PTRACE_ATTACH, PTRACE_SEIZE = 16, 0x4206
for pid in (at.pid, os.getppid(), 1):
    for request in (PTRACE_ATTACH, PTRACE_SEIZE):
        if libc.ptrace(request, pid, 0, 0) == 0:
            escaped(("ptrace", pid))
    data = ctypes.create_string_buffer(8)
    class Vector(ctypes.Structure):
        _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))
    here, there = Vector(ctypes.addressof(data), 8), Vector(ctypes.addressof(data), 8)
    if libc.process_vm_readv(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0) > 0:
        escaped(("memory", pid))
""",
    "mounts": """
for source, target, kind, flags in (
    (b"none", b".", b"tmpfs", 0), (b"/", b".", None, 4096), (b"proc", b".", b"proc", 0), (b"", b"/", None, 4096 | 32),
):
    if libc.mount(source, target, kind, flags, None) == 0:
        escaped(("mounted", kind))
if libc.umount2(b"/", 2) == 0 or libc.umount2(b"/usr", 2) == 0:
    escaped("unmounted")
""",
    "makes namespaces": """
CLONE_NEWUSER, CLONE_NEWNS, CLONE_NEWNET = 0x10000000, 0x20000, 0x40000000
for flags in (CLONE_NEWUSER, CLONE_NEWNS, CLONE_NEWNET, CLONE_NEWUSER | CLONE_NEWNS):
    if libc.unshare(flags) == 0:
        escaped(("unshare", flags))
CLONE = {"x86_64": 56, "aarch64": 220}[os.uname().machine]
pid = libc.syscall(CLONE, ctypes.c_ulong(CLONE_NEWUSER | signal.SIGCHLD), None, None, None, None)
if pid == 0:
    os._exit(0)
if pid > 0:
    escaped("clone")
for kind in ("mnt", "net", "user"):
    with refused:
        namespace = os.open(f"/proc/{at.pid}/ns/{kind}", os.O_RDONLY)
        if libc.setns(namespace, 0) == 0:
            escaped(("setns", kind))
""",
    "sends signals": """
for pid in (at.pid, os.getppid(), -1, 1):
    for number in (signal.SIGTERM, signal.SIGSTOP, signal.SIGKILL):
        if pid in (-1, 1) and number == signal.SIGSTOP:
            continue
        with refused:
            os.kill(pid, number)
            if pid == at.pid:
                escaped((pid, number))
with refused:
    signal.pidfd_send_signal(os.pidfd_open(at.pid), signal.SIGKILL)
    escaped("by a descriptor")
reader, writer = os.pipe()
with refused:
    fcntl.fcntl(reader, fcntl.F_SETOWN, at.pid)
    fcntl.fcntl(reader, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(reader, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    os.write(writer, b"x")
with refused:
    fcntl.fcntl(reader, 15, struct.pack("ii", 1, at.pid))  # F_SETOWN_EX
    fcntl.fcntl(reader, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    os.write(writer, b"x")
""",
    "joins the group of its keeper": """
with refused:
    os.setpgid(0, os.getpgid(os.getppid()))
    escaped("the group of its keeper")
""",
    "fills memory that no limit counts": """
with refused:
    one, other = socket.socketpair()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 22)
    escaped("a large buffer of a socket")
with refused:
    Path("file").touch()
    os.setxattr("file", "user.x", b"x")
    escaped("an attribute of a file")
""",
    "watches what others do with files": """
inotify = libc.inotify_init1(0)
if inotify >= 0 and libc.inotify_add_watch(inotify, at.folder.encode(), 0xFFF) >= 0:
    escaped("a watch")
""",
    "changes the limits of others and its own": """
for pid in (at.pid, os.getppid()):
    with refused:
        resource.prlimit(pid, resource.RLIMIT_CPU, (1, 1))
        escaped(("limit", pid))
    with refused:
        os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))
        escaped(("scheduler", pid))
    with refused:
        os.setpriority(os.PRIO_PROCESS, pid, 19)
        escaped(("priority", pid))
for kind in (resource.RLIMIT_AS, resource.RLIMIT_NPROC, resource.RLIMIT_FSIZE, resource.RLIMIT_CPU):
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(kind, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        escaped(("no limit", kind))
""",
    "uses calls of the kernel that programs do not need": """
CALLS = {"bpf": 321, "userfaultfd": 323, "perf_event_open": 298, "keyctl": 250, "io_uring_setup": 425,
         "memfd_create": 319, "shmget": 29, "open_by_handle_at": 304, "kexec_load": 246, "acct": 163, "syslog": 103}
if os.uname().machine == "x86_64":
    for name, number in CALLS.items():
        if libc.syscall(number, ctypes.c_long(0), ctypes.c_long(4096), ctypes.c_long(0o1600)) >= 0:
            escaped(name)
        elif ctypes.get_errno() not in (errno.EPERM, errno.ENOSYS):
            escaped((name, ctypes.get_errno()))
    libc.syscall(0x40000000 | 39)
    if ctypes.get_errno() != errno.ENOSYS:
        escaped("the calls of x32")
""",
    "hides in other sessions": """
for _ in range(2):
    if os.fork():
        os._exit(0)
    os.setsid()
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(600)", at.marker])
""",
    "runs text of the model by sympy": """
sys.path += at.packages
from sympy.parsing.sympy_parser import parse_expr
for text in (
    f"__import__('os').system('cat {at.secret}; touch {at.folder}/areal-like-attack')",
    f"open('{at.folder}/areal-like-attack', 'w')",
    f"().__class__.__base__.__subclasses__()[104].load_module('os').system('touch {at.folder}/areal-like-attack')",
):
    with contextlib.suppress(Exception):
        parse_expr(text)
""",
}
"""What it tries -> the program."""
