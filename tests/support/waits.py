"""Finds the waits in a source file that have no limit.

To await a coroutine, a task or several of them (`asyncio.gather`) is no wait of its own: what they wait for is found
where they do. Neither is a call of a method of the same class. A lock is one if whoever holds it may wait meanwhile,
and so is a loop that sleeps and looks at no clock. A limit that may be None is none.
"""

import ast
from typing import NamedTuple

LOCKS = {"threading.Lock", "threading.RLock", "threading.Condition", "threading.Semaphore"}
ASYNC_LOCKS = {"asyncio.Lock", "asyncio.Condition", "asyncio.Semaphore"}
POLLERS = {"select.poll", "select.epoll"}
QUEUES = {"queue.Queue", "queue.SimpleQueue", "SimpleQueue", "Queue", "asyncio.Queue", "multiprocessing.Queue"}
KINDS = LOCKS | ASYNC_LOCKS | QUEUES | POLLERS
COLLECTIVES = {
    *("all_reduce", "all_gather", "all_gather_into_tensor", "all_gather_object", "reduce", "reduce_scatter"),
    *("reduce_scatter_tensor", "broadcast", "broadcast_object_list", "scatter", "gather", "gather_object", "barrier"),
    *("monitored_barrier", "send", "recv", "isend", "irecv", "all_to_all", "all_to_all_single", "batch_isend_irecv"),
    *("scatter_object_list", "init_process_group", "new_group", "new_subgroups", "init_device_mesh"),
}
MODULES_OF_COLLECTIVES = {"dist", "c10d", "torch.distributed", "distributed"}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
SIGNALS = {"sigwait", "sigwaitinfo", "pause"}
WAITS_FOR_SEVERAL = {"", "futures", "concurrent.futures", "connection", "multiprocessing.connection"}
"""Modules of a function `wait(these, timeout)`; of none where it is imported by itself."""
SUBPROCESS = {"run", "call", "check_call", "check_output", "getoutput", "getstatusoutput"}
STREAM_READS = {"read", "readline", "readexactly", "readuntil", "readany", "readchunk", "readinto", "readlines"}
WAITING = ("wait", "join", "result", "acquire", "communicate", "sleep", "select", "flock")
SOCKETS = ("sock", "wire", "conn", "control", "listening", "caller")
PIPES = ("stdout", "stderr", "stdin", "pipe", "sock", "wire", "connection")
"""Parts of names of what is read from without an end in sight."""
LIMITS = ("timeout", "timeout_s", "limit_s")
CLOCKS = {"monotonic", "perf_counter", "time"}


class Wait(NamedTuple):
    """`place`: function and call, as a table of exceptions names it."""

    place: str
    line: int


def unlimited_waits(path: str, source: str) -> list[Wait]:
    reader = _Reader(ast.parse(source))
    return [Wait(f"{path} {where}", line) for where, line in reader.waits]


class _Reader(ast.NodeVisitor):
    def __init__(self, tree: ast.Module) -> None:
        self.waits: list[tuple[str, int]] = []
        self._names: list[str] = []
        self._functions: list[ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda] = []
        self._limits = 0
        self._methods: set[str] = set()
        self._kinds = _kinds(tree)
        self.visit(tree)

    # Where it is.

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._names.append(node.name)
        methods, self._methods = self._methods, {each.name for each in node.body if isinstance(each, FUNCTIONS)}
        self.generic_visit(node)
        self._methods = methods
        self._names.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        limits, self._limits = self._limits, 0
        self._names.append(node.name)
        self._functions.append(node)
        self.generic_visit(node)
        self._functions.pop()
        self._names.pop()
        self._limits = limits

    visit_AsyncFunctionDef = visit_FunctionDef

    def _found(self, node: ast.expr | ast.stmt, what: str) -> None:
        if not self._limits:
            self.waits.append((f"{'.'.join(self._names) or '<module>'}: {what}", node.lineno))

    @property
    def _is_async(self) -> bool:
        return bool(self._functions) and isinstance(self._functions[-1], ast.AsyncFunctionDef)

    def _selects(self, *more: str) -> bool:
        """Whether the function waits for the descriptor with a limit before it reads, or reads without blocking."""
        text = ast.unparse(self._functions[-1]) if self._functions else ""
        words = ("select.select(", ".select(", "settimeout(", "O_NONBLOCK", "MSG_DONTWAIT", *more)
        return any(word in text for word in words)

    # What limits a wait.

    def _has_limit(self, node: ast.expr, place: int | None, *names: str) -> bool:
        """By keyword, or as the positional argument at `place`. A function there is no number of seconds."""
        if not isinstance(node, ast.Call):
            return False
        if self._keyword(node, *LIMITS, *names) or any(isinstance(each, ast.Starred) for each in node.args):
            return True
        if place is None or len(node.args) <= place:
            return False
        value = node.args[place]
        return not isinstance(value, ast.Lambda) and not self._may_be_none(value)

    def _keyword(self, node: ast.Call, *names: str) -> bool:
        return any(each.arg in names and not self._may_be_none(each.value) for each in node.keywords)

    def _may_be_none(self, value: ast.expr) -> bool:
        """None itself, or a name of the function that may be None by its annotation or by what is assigned to it."""
        if isinstance(value, ast.Name):
            return any(value.id in _optional_names(function) for function in self._functions)
        return _is_none(value)

    def visit_AsyncWith(self, node: ast.AsyncWith) -> None:
        limited = 0
        for item in node.items:
            name = _called(item.context_expr)
            if name in ("asyncio.timeout", "asyncio.timeout_at"):
                limited += self._has_limit(item.context_expr, 0, "delay", "when")
            self._check_lock(item.context_expr, ASYNC_LOCKS, node)
            self.visit(item.context_expr)
        self._limits += limited
        for statement in node.body:
            self.visit(statement)
        self._limits -= limited

    def visit_With(self, node: ast.With) -> None:
        for item in node.items:
            if self._kind(item.context_expr) in LOCKS and _waits_inside(node):
                self._found(node, f"with {ast.unparse(item.context_expr)}")
            if (called := _called(item.context_expr)).endswith(("ThreadPoolExecutor", "ProcessPoolExecutor")):
                self._found(node, f"with {called}")
        self.generic_visit(node)

    def _check_lock(self, expression: ast.expr, kinds: set[str], node: ast.stmt) -> None:
        if self._kind(expression) in kinds:
            self._found(node, f"async with {ast.unparse(expression)}")

    def _kind(self, expression: ast.expr) -> str:
        return self._kinds.get(_last(expression), "")

    # Calls.

    def visit_Await(self, node: ast.Await) -> None:
        if isinstance(node.value, ast.Name | ast.Attribute) and self._kind(node.value) == "future":
            self._found(node, f"await {ast.unparse(node.value)}")
        self.generic_visit(node)

    def visit_AsyncFor(self, node: ast.AsyncFor) -> None:
        text = ast.unparse(node.iter)
        if ".content" in text:
            self._found(node, f"async for {text}")
        self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        if _sleeps(node) and not _looks_at_clock(node):
            self._found(node, f"while {ast.unparse(node.test)}")
        self.generic_visit(node)

    def visit_For(self, node: ast.For) -> None:
        if _last(node.iter) in ("stdout", "stderr", "stdin"):
            self._found(node, f"for {ast.unparse(node.iter)}")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = _called(node)
        if name == "asyncio.wait_for" and self._has_limit(node, 1):
            self._limits += 1
            self.generic_visit(node)
            self._limits -= 1
            return
        if self._waits(node, name):
            self._found(node, name)
        self.generic_visit(node)

    def _waits(self, node: ast.Call, name: str) -> bool:
        owner, _, last = name.rpartition(".")
        receiver = node.func.value if isinstance(node.func, ast.Attribute) else None
        if isinstance(receiver, ast.Constant | ast.JoinedStr) or not name:
            return False
        if owner == "asyncio":
            return (last == "wait" and not self._has_limit(node, 1)) or last == "wait_for"
        if owner in MODULES_OF_COLLECTIVES:
            return last in COLLECTIVES and not self._has_limit(node, None)
        if owner == "subprocess":
            return last in SUBPROCESS and not self._has_limit(node, None)
        if owner == "os":
            if last in ("waitpid", "waitid", "wait", "wait3", "wait4"):
                return "WNOHANG" not in ast.unparse(node)
            return last in ("read", "readv") and not self._selects()
        if owner == "fcntl":
            text = ast.unparse(node)
            return last in ("flock", "lockf") and "LOCK_NB" not in text and "LOCK_UN" not in text
        if owner == "select":
            return last == "select" and not self._has_limit(node, 3)
        if owner == "signal":
            return last in SIGNALS
        if last == "recv_fds":
            return not self._selects()
        if last == "wait" and owner in WAITS_FOR_SEVERAL and node.args:
            return not self._has_limit(node, 1)
        return self._waits_by_method(node, last, receiver)

    def _is_queue(self, receiver: ast.expr) -> bool:
        """By its kind; if that is unknown, as of a parameter, by its name."""
        kind = self._kind(receiver)
        return kind in QUEUES or (not kind and _last(receiver).lower().endswith("queue"))

    def _waits_by_method(self, node: ast.Call, last: str, receiver: ast.expr | None) -> bool:
        text = "" if receiver is None else ast.unparse(receiver)
        if (text == "self" and last in self._methods) or text == "logging":
            return False
        match last:
            case "communicate":
                return not self._has_limit(node, 1)
            case "wait" | "join" if receiver is not None:
                return not self._has_limit(node, 0)
            case "wait_for":
                return not self._has_limit(node, 1)
            case "result" if receiver is not None:
                return not self._is_async and not node.args and not self._has_limit(node, 0)
            case "acquire":
                blocks = all(isinstance(each, ast.Constant) and each.value is True for each in node.args)
                return blocks and not self._has_limit(node, 1) and "blocking=False" not in ast.unparse(node)
            case "shutdown" if receiver is not None:
                return not node.args and "wait=False" not in ast.unparse(node)
            case "get" | "put":
                return receiver is not None and self._is_queue(receiver) and not self._has_limit(node, 1)
            case "poll" if receiver is not None:
                is_poller = self._kind(receiver) in POLLERS or _last(receiver).lower().endswith("poller")
                return is_poller and not self._has_limit(node, 0)
            case "recv" | "recv_bytes" if receiver is not None and not node.args:  # of multiprocessing
                return not self._selects(".poll(")
            case "select" if receiver is not None:
                return not self._has_limit(node, 0)
            case "accept" | "recv" | "recv_into" | "recvmsg" | "recvfrom" if receiver is not None:
                return any(part in text for part in SOCKETS)
            case "drain" | "drained" | "wait_closed":
                return True
            case "as_completed":
                return not self._has_limit(node, 1)
            case "urlopen":
                return not self._has_limit(node, 2)
            case "HTTPConnection" | "HTTPSConnection" | "ClientTimeout":
                return not self._has_limit(node, None) and not self._keyword(node, "total", "sock_read")
            case "create_connection":
                return not self._has_limit(node, 1) and not self._keyword(node, "sock")
            case _ if last in STREAM_READS and receiver is not None:
                is_pipe = any(part in text.lower() for part in PIPES)
                return is_pipe or (self._is_async and text.lower().endswith(("reader", "stream", ".content")))
        return False


def _waits_inside(node: ast.With) -> bool:
    """Whether whoever holds the lock may wait for something else meanwhile. Waiting for a condition gives it up."""
    held = {_last(item.context_expr) for item in node.items}
    calls = (each.func for each in ast.walk(node) if isinstance(each, ast.Call))
    return any(
        isinstance(called, ast.Attribute)
        and called.attr in WAITING
        and _last(called.value) not in held
        and not isinstance(called.value, ast.Constant)
        for called in calls
    )


def _kinds(tree: ast.Module) -> dict[str, str]:
    """What variables and attributes of a file are, as far as they are assigned in it."""
    kinds: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                pairs = [(target, node.value)]
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs = list(zip(target.elts, node.value.elts, strict=False))
                for each, value in pairs:
                    _note(kinds, each, value)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            _note(kinds, node.target, node.value)
    for node in ast.walk(tree):
        if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation is not None:
            kind = ast.unparse(node.annotation).strip("'\"").partition("[")[0]
            if kind in KINDS:
                kinds.setdefault(node.arg if isinstance(node, ast.arg) else _last(node.target), kind)
    return kinds


def _note(kinds: dict[str, str], target: ast.expr, value: ast.expr) -> None:
    called = _called(value)
    if called in KINDS:
        kinds[_last(target)] = called
    elif called.endswith("create_future"):
        kinds[_last(target)] = "future"


def _called(node: ast.AST) -> str:
    """`a.b.c` of a call `a.b.c(...)`; a subexpression that is no name is `...`."""
    if not isinstance(node, ast.Call):
        return ""
    return _dotted(node.func)


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    if isinstance(node, ast.Subscript):
        return f"{_dotted(node.value)}[]"
    if isinstance(node, ast.Call):
        return f"{_dotted(node.func)}()"
    return "..."


def _last(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _sleeps(loop: ast.While) -> bool:
    return any(_called(each).rpartition(".")[2] == "sleep" for each in ast.walk(loop))


def _looks_at_clock(loop: ast.While) -> bool:
    """Whether it compares a time of the clock with something, or has a NamedWait do so."""
    times = {
        _last(target)
        for each in ast.walk(loop)
        if isinstance(each, ast.Assign) and _has_time(each.value, set())
        for target in each.targets
    }
    for each in ast.walk(loop):
        if isinstance(each, ast.Compare) and _has_time(each, times):
            return True
        if isinstance(each, ast.Call) and _called(each).endswith(".check") and not each.args:
            return True
    return False


def _has_time(node: ast.expr, times: set[str]) -> bool:
    return any(
        _called(each).rpartition(".")[2] in CLOCKS or (isinstance(each, ast.Name) and each.id in times)
        for each in ast.walk(node)
    )


def _optional_names(function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> set[str]:
    """Its parameters and variables that may be None."""
    arguments = function.args
    names = {
        each.arg
        for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
        if each.annotation is not None and _may_be_of_none(each.annotation)
    }
    for node in ast.walk(function):
        if isinstance(node, ast.AnnAssign):
            if _may_be_of_none(node.annotation) or (node.value is not None and _is_none(node.value)):
                names.add(_last(node.target))
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                pairs = [(target, node.value)]
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs = list(zip(target.elts, node.value.elts, strict=False))
                names |= {_last(each) for each, value in pairs if isinstance(each, ast.Name) and _is_none(value)}
    return names


def _may_be_of_none(annotation: ast.expr) -> bool:
    text = ast.unparse(annotation)
    return "None" in text or "Optional" in text


def _is_none(value: ast.expr) -> bool:
    """Also as one of the two values of a condition."""
    if isinstance(value, ast.IfExp):
        return _is_none(value.body) or _is_none(value.orelse)
    return isinstance(value, ast.Constant) and value.value is None
