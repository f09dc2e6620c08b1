"""The launcher process: starts shell commands, and reaps them. Run as a script; imports little.

A process started by the driver itself would begin with the driver's own peak memory to its account (Linux
carries it over into the new program), and a 5 MB command would be reported with the driver's 300 MB. Started
from this small process it begins at a few MB.

Messages are marshalled values, framed as by ``multiprocessing.connection``. The launcher first says ``"ready"``. A
tuple (arguments, environment, folder, output file, error file) asks to start a command; the answer is its pid, or -1,
the errno, or 0, and when it was started (by the monotonic clock). A pid asks to reap a command that has ended; the
answer is its wait status, CPU seconds and peak memory in KB, or None if it isn't there.
"""

import errno
import marshal
import os
import signal
import struct
import sys
import time

_LENGTH = struct.Struct("!i")
_MODE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def serve(control: int) -> None:
    """Answer requests until the driver hangs up."""
    os.set_inheritable(control, False)
    answer = "ready"
    while True:
        content = marshal.dumps(answer)
        os.write(control, _LENGTH.pack(len(content)) + content)
        head = _read(control, _LENGTH.size)
        body = _read(control, _LENGTH.unpack(head)[0]) if head else b""
        if not body:
            return
        request = marshal.loads(body)
        answer = _reap(request) if isinstance(request, int) else _start(*request)


def _read(control: int, size: int) -> bytes:
    """Exactly ``size`` bytes; none if the driver hung up before."""
    content = b""
    while len(content) < size:
        more = os.read(control, size - len(content))
        if not more:
            return b""
        content += more
    return content


def _start(
    arguments: list[bytes], environment: dict[bytes, bytes], folder: bytes, out: bytes, err: bytes
) -> tuple[int, int, float]:
    opened_err = (os.POSIX_SPAWN_OPEN, 2, err, _MODE, 0o666)
    try:
        os.chdir(folder)
        begun = time.monotonic()
        pid = os.posix_spawn(
            arguments[0],
            arguments,
            environment,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 1, out, _MODE, 0o666),
                (os.POSIX_SPAWN_DUP2, 1, 2) if err == out else opened_err,
            ],
            setsid=True,
            # Python ignores these; a command must not.
            setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
        )
        os.chdir("/")
    except OSError as error:
        return -1, error.errno or errno.EIO, 0.0
    except NotImplementedError:
        return -1, errno.ENOSYS, 0.0
    return pid, 0, begun


def _reap(pid: int) -> tuple[int, float, int] | None:
    try:
        _, status, usage = os.wait4(pid, 0)
    except ChildProcessError:
        return None
    return status, usage.ru_utime + usage.ru_stime, usage.ru_maxrss


if __name__ == "__main__":
    serve(int(sys.argv[1]))
