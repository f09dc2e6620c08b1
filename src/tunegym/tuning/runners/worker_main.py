"""The worker process: calls Python functions for the driver.

Messages in both directions are frames of ``core.wire``. The worker first says ``"ready"``. The driver then sends
``["call", target, arguments, environment variables, folder, reports]``; the worker answers ``"loaded"`` when the target
is imported, and a table when the call has ended. In between it may send reports ``(step, value)``, which the driver
answers with ``["verdict", whether to end now]``. A user's signal handler that raises may leave a verdict unread.
"""

# pathlib would cost a good part of the start-up:
# ruff: noqa: PTH118, PTH119, PTH120, PTH123

from __future__ import annotations

import contextlib
import faulthandler
import math
import operator
import os
import pkgutil
import resource
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, SupportsFloat, SupportsIndex

from tunegym.core.text import error_text, printable
from tunegym.core.wire import Connection, ConnectionClosedError, WireError

_HERE = os.path.dirname(__file__)
_CORE = os.path.join(os.path.dirname(os.path.dirname(_HERE)), "core")


class UnusableValueError(Exception):
    """A function returned something that is neither a number nor plain data."""


def serve(control: str, *paths: str) -> None:
    """Answer calls until the driver hangs up, or is gone."""
    driver = Connection(socket.socket(fileno=int(control)))
    sys.path[:0] = paths
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 2)
    faulthandler.enable()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]
    driver.send("ready")
    home = os.open(".", os.O_RDONLY)
    functions: dict[str, Callable[..., Any]] = {}
    while True:
        try:
            kind, *rest = driver.receive()
        except ConnectionClosedError:
            return
        if kind == "verdict":  # left unread by the last call
            continue
        pid = os.getpid()
        answer = answer_call(driver, functions, nowhere, *rest)
        if os.getpid() != pid:  # the function forked, and this is the copy
            os._exit(0)
        os.fchdir(home)
        try:
            driver.send(answer)
        except WireError as error:
            driver.send({"error": f"what the function returned can't be sent: {error}"})


def answer_call(
    driver: Connection,
    functions: dict[str, Callable[..., Any]],
    nowhere: int,
    target: str,
    arguments: dict[str, Any],
    env: dict[str, str],
    folder: str,
    reports: bool,
) -> dict[str, Any]:
    """Load the target, say so, call it, and say how that went."""
    report = None
    with contextlib.ExitStack() as undo:
        try:
            for fd, name in ((1, "stdout.txt"), (2, "stderr.txt")):  # for all that is printed, by children as well
                file = os.open(os.path.join(folder, name), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
                undo.callback(os.dup2, nowhere, fd)
                os.dup2(file, fd)
                os.close(file)
        except OSError as error:
            return {"broken": (error.errno, error.strerror)}
        undo.callback(flush)
        try:
            with environment(env):
                if target not in functions:
                    functions[target] = pkgutil.resolve_name(target)
                if reports:
                    report = arguments["report"] = Report(lambda *reached: asked(driver, reached))
                driver.send("loaded")
                return measured(functions[target], arguments)
        except BaseException as error:
            told = report is not None and report.told  # a trial that is pruned may end as it likes
            return {"error": "pruned" if told else failure(error), "tracker": resource_tracker_pid()}
        finally:
            if report is not None:
                report.close()


def asked(driver: Connection, reached: tuple[int, float]) -> bool:
    """Report a value; whether to end now. An error that a user's signal handler raises meanwhile passes through."""
    driver.send(reached)
    return driver.receive()[1]


def measured(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Call the function; its value, and the time and memory that it took, by the names that they have in a result."""
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
        "tracker": resource_tracker_pid(),
    }


def plain(value: Any) -> Any:
    """The value as plain data: numbers, texts, None, and dicts and lists of them.

    Raises ``UnusableValueError``: it can't be had as such.
    """
    kind = type(value)
    if value is None or kind in (bool, int, float):
        return value
    if isinstance(value, str):
        return printable(str(value))
    if isinstance(value, Mapping):
        return {printable(str(key)): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    item = getattr(value, "item", None)  # numpy's and torch's scalars
    if callable(item):
        with contextlib.suppress(Exception):
            scalar = item()
            if type(scalar) in (bool, int, float, str):
                return scalar
    if hasattr(kind, "__float__"):
        return value if isinstance(value, int) else float(value)
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
    place = ""
    step = error.__traceback__
    while step is not None:
        file = step.tb_frame.f_code.co_filename
        if not file.startswith("<frozen") and os.path.dirname(file) not in (_HERE, _CORE):
            place = f" ({os.path.basename(file)}:{step.tb_lineno})"
        step = step.tb_next
    return f"{error_text(error)}{place}"


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
    """Write out all that was printed."""
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


def resource_tracker_pid() -> int | None:
    """The pid of multiprocessing's resource tracker, which serves all calls and ends with us."""
    module = sys.modules.get("multiprocessing.resource_tracker")
    return getattr(getattr(module, "_resource_tracker", None), "_pid", None)


# report -----------------------------------------------------------------------------------------------


class TrialPruned(BaseException):
    """Raised by ``report`` in a trial that is to end now.

    No ``Exception``, so that code that is prepared for any error still lets it through.
    """


class Report:
    """Called by the user's function with (step, value); may be called from any of its threads.

    ``tell`` hands a value on, and says whether the trial is to end now; ``told`` is True from then on.
    """

    def __init__(self, tell: Callable[[int, float], bool]) -> None:
        self._tell = tell
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._open = True
        self.told = False

    def __call__(self, step: SupportsIndex, value: SupportsFloat) -> None:
        """Tell that the trial has come to ``step``, and what its metric is there.

        Raises:
            TypeError, ValueError: this is no step or no number.
            RuntimeError: called in another process, or after the function returned.
            TrialPruned: the trial is to end now.
        """
        if os.getpid() != self._pid:
            raise RuntimeError("report() was called in another process; call it where the function was called")
        at, number = _step(step), _number(value)
        with self._lock:
            if not self._open:
                raise RuntimeError("report() was called after the function had returned")
            self.told = self.told or self._tell(at, number)
            if self.told:
                raise TrialPruned

    def close(self) -> None:
        """Refuse values from now on; waits for one that is on its way."""
        if os.getpid() == self._pid:  # in a copy of the process the lock may be held for ever
            with self._lock:
                self._open = False


def _step(step: Any) -> int:
    if isinstance(step, bool):
        raise TypeError("report(step, value): step must be an integer, not a boolean")
    try:
        number = operator.index(step)
    except TypeError:
        raise TypeError(f"report(step, value): step must be an integer, not {step!r:.80}") from None
    if not -(2**63) <= number < 2**63:
        raise ValueError("report(step, value): step must fit in 64 bits")
    return number


def _number(value: Any) -> float:
    # An array's boolean is no number either; its type says so, whichever library it is from.
    if isinstance(value, bool | str | bytes) or "bool" in str(getattr(value, "dtype", "")):
        raise TypeError(f"report(step, value): value must be a number, not {value!r:.80}")
    try:
        return float(value)
    except OverflowError:  # an integer that no float can hold
        return math.inf if value > 0 else -math.inf
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"report(step, value): value must be a number, not {value!r:.80}") from None
