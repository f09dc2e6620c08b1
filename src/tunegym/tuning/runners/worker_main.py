"""The worker process: calls Python functions for the driver.

Run as a script that imports little, and of ours only what ``report`` is, for functions that take it.

Messages in both directions are pickles after their length in eight bytes. First the driver sends its
``sys.path``, and the worker answers that it is ready. Then, for every call, the driver sends (target,
arguments, environment variables, folder, what becomes of reports), and the worker answers twice: when the target is
loaded, and when the call has ended. In between it may send reports (number, step, value), each of which the driver
answers with whether the function is to end now: eight bytes in the place of a length, see ``verdict``. A signal's
handler that raises leaves verdicts unread, so one that nobody waits for is passed over.
"""

# pathlib would cost a good part of the start-up:
# ruff: noqa: PTH118, PTH119, PTH120, PTH123

import contextlib
import faulthandler
import fcntl
import importlib
import os
import pickle
import resource
import signal
import struct
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

LENGTH = struct.Struct("=Q")
_VERDICT = 1 << 63  # no length has this bit
_F_SETSIG = 10
_HERE = os.path.dirname(__file__)


class UnusableValueError(Exception):
    """A function returned something that is neither a number nor plain data."""


def serve(control: int, lifeline: int) -> None:
    """Answer calls until the driver hangs up, or is gone."""
    for fd in (control, lifeline):
        os.set_inheritable(fd, False)
    end_with(lifeline)
    sys.path[:] = receive(control)
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 2)
    faulthandler.enable()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]
    send(control, "ready")
    home = os.open(".", os.O_RDONLY)
    functions: dict[str, Callable[..., Any]] = {}
    while True:
        try:
            call = receive(control)
        except EOFError:
            return
        pid = os.getpid()
        answer = answer_call(control, functions, nowhere, *call)
        if os.getpid() != pid:  # the function forked, and this is the copy
            os._exit(0)
        os.fchdir(home)
        send(control, answer)


def answer_call(
    control: int,
    functions: dict[str, Callable[..., Any]],
    nowhere: int,
    target: str,
    arguments: dict[str, Any],
    env: dict[str, str],
    folder: str,
    reports: str | None,
) -> dict[str, Any]:
    """Load the target, say so, call it, and say how that went."""
    report = None
    try:
        out = os.open(os.path.join(folder, "stdout.txt"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        err = os.open(os.path.join(folder, "stderr.txt"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    except OSError as error:
        return {"broken": (error.errno, error.strerror)}
    try:
        with redirected(out, err, nowhere):
            try:
                with environment(env):
                    if target not in functions:
                        functions[target] = load(target)
                    if reports is not None:
                        report = arguments["report"] = reporter(control, reports == "watched")
                    send(control, "loaded")
                    return measured(functions[target], arguments)
            except SystemExit as error:
                leave(error)
            except BaseException as error:
                if report is not None and report.told:
                    return {"pruned": True, "tracker": tracker_pid()}
                return {"error": failure(error)}
            finally:
                if report is not None:
                    report.close()
    finally:
        os.close(out)
        os.close(err)
    raise AssertionError("unreachable")


def reporter(control: int, watched: bool) -> Any:
    """What the function is given as ``report``."""
    from tunegym.tuning.runners.reporting import Report  # small, and only for those who ask for it

    number = 0

    def tell(step: int, value: float) -> bool:
        nonlocal number
        if not watched:
            return False
        number += 1
        send(control, (number, step, value))
        while True:
            word = _word(control)
            if word >> 1 == _VERDICT >> 1 | number:
                return bool(word & 1)

    return Report(tell)


def verdict(number: int, end: bool) -> bytes:
    """What the driver answers to a report. In one piece, so that it is read as a whole or not at all."""
    return LENGTH.pack(_VERDICT | number << 1 | end)


def measured(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Call the function; what it returned, and what that took."""
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as peak:
        peak.write("5")  # the peak starts over
    cpu = cpu_time()
    begun = time.perf_counter()
    value = function(**arguments)
    duration = time.perf_counter() - begun
    used = cpu_time() - cpu
    return {
        "duration_s": duration,
        "cpu_s": used,
        "max_rss_mb": peak_memory_mb(),
        "value": plain(value),
        "tracker": tracker_pid(),
    }


def load(target: str) -> Callable[..., Any]:
    """The function that ``module:function`` names."""
    module, _, path = target.partition(":")
    found: Any = importlib.import_module(module)
    for name in path.split("."):
        found = getattr(found, name)
    return found


def plain(value: Any) -> Any:
    """The value as plain data: numbers, texts, None, and dicts and lists of them.

    Raises:
        UnusableValueError: it can't be had as such.
    """
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    item = getattr(value, "item", None)  # numpy's and torch's scalars
    if callable(item):
        with contextlib.suppress(Exception):
            scalar = item()
            if type(scalar) in (bool, int, float, str):
                return scalar
    for base in (int, float, str):
        if isinstance(value, base):
            return base(value)
    if hasattr(kind, "__float__"):
        return float(value)
    raise UnusableValueError(f"the function returned a {kind.__name__}, not numbers by name")


def failure(error: BaseException) -> str:
    """The error in one line; its traceback goes to stderr."""
    import traceback

    with contextlib.suppress(Exception):
        traceback.print_exception(error)
    return describe(error)


def describe(error: BaseException) -> str:
    """``ValueError: text (file.py:12)``, with the place where it was raised."""
    if type(error) is UnusableValueError:
        return str(error)
    try:
        text = " ".join(str(error).split())
    except Exception:
        text = "(its text can't be had)"
    text = text if len(text) <= 500 else text[:497] + "..."
    place = ""
    step = error.__traceback__
    while step is not None:
        file = step.tb_frame.f_code.co_filename
        if not file.startswith("<frozen") and os.path.dirname(file) != _HERE:
            place = f" ({os.path.basename(file)}:{step.tb_lineno})"
        step = step.tb_next
    return f"{type(error).__name__}: {text}{place}" if text else f"{type(error).__name__}{place}"


def leave(error: SystemExit) -> None:
    """What ``sys.exit`` means, without waiting for threads."""
    code = error.code
    if code is not None and not isinstance(code, int):
        with contextlib.suppress(Exception):
            sys.stderr.write(f"{code}\n")
        code = 1
    flush()
    os._exit((code or 0) & 0xFF)


@contextlib.contextmanager
def redirected(out: int, err: int, nowhere: int) -> Iterator[None]:
    """Everything printed, by children as well, goes to the two files."""
    os.dup2(out, 1)
    os.dup2(err, 2)
    try:
        yield
    finally:
        flush()
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)


@contextlib.contextmanager
def environment(env: dict[str, str]) -> Iterator[None]:
    """The variables are set, and afterwards as they were."""
    before = {name: os.environ.get(name) for name in env}
    try:
        os.environ.update(env)
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def flush() -> None:
    """Write out what was printed."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def cpu_time() -> float:
    """CPU seconds of this process and of the children it waited for."""
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def peak_memory_mb() -> float:
    """The peak since it was started over, or of the whole process where that can't be had."""
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/self/status", "rb") as status:
        return int(status.read().split(b"VmHWM:", 1)[1].split(None, 1)[0]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def tracker_pid() -> int | None:
    """The pid of multiprocessing's own helper, which serves all calls and ends with us."""
    module = sys.modules.get("multiprocessing.resource_tracker")
    return getattr(getattr(module, "_resource_tracker", None), "_pid", None)


def end_with(lifeline: int) -> None:
    """Have this process group killed when the other end of the pipe closes, as it does when the driver dies.

    Linux does that by itself, also when this process is busy in code that never lets go of the interpreter;
    elsewhere a thread waits for it.
    """
    if sys.platform != "linux":
        import threading

        threading.Thread(target=_wait_for_end, args=(lifeline,), daemon=True).start()
        return
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(lifeline, _F_SETSIG, int(signal.SIGKILL))
    flags = fcntl.fcntl(lifeline, fcntl.F_GETFL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, flags | os.O_ASYNC | os.O_NONBLOCK)
    with contextlib.suppress(BlockingIOError):
        os.read(lifeline, 1)  # returns at once if the driver died before we asked to be told
        os.killpg(os.getpgrp(), signal.SIGKILL)


def _wait_for_end(lifeline: int) -> None:
    os.read(lifeline, 1)
    os.killpg(os.getpgrp(), signal.SIGKILL)


def send(control: int, message: Any) -> None:
    """Write one message."""
    content = pickle.dumps(message)
    left = memoryview(LENGTH.pack(len(content)) + content)
    while left:
        left = left[os.write(control, left) :]


def receive(control: int) -> Any:
    """Read one message, past verdicts that nobody waits for; EOFError when the driver has hung up."""
    word = _word(control)
    while word & _VERDICT:
        word = _word(control)
    return pickle.loads(_read(control, word))


def _word(control: int) -> int:
    """A length or a verdict."""
    return LENGTH.unpack(_read(control, LENGTH.size))[0]


def _read(control: int, length: int) -> bytes:
    content = b""
    while len(content) < length:
        more = os.read(control, min(length - len(content), 1 << 20))
        if not more:
            raise EOFError
        content += more
    return content


if __name__ == "__main__":
    serve(int(sys.argv[1]), int(sys.argv[2]))
