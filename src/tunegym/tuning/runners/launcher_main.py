"""The launcher process: starts commands, and reaps them. Run as a script; imports as little as possible.

Linux carries the peak memory of the process that starts a program over into the program's own account: started by the
driver, a 2 MB command would be reported with the driver's 300 MB. So commands are started by a fork of this small
process, which has neither the pages of Python's start nor those of files that it doesn't use: about 6 MB.

Messages are marshalled values, framed as by ``multiprocessing.connection``. The launcher first says ``"ready"``. A
tuple (programs, environment, folder, output file, error file) asks to start a command: the first of the programs,
each a path with its arguments, that can be started. The answer is its pid, or -1, the errno, or 0, and when it was
started (by the monotonic clock). A pid asks to reap a command that has ended; the answer is its wait status, CPU
seconds and peak memory in KB, or None if it isn't there.

Arguments: the descriptor of the connection, a marker or nothing, and the signals that Python ignores and a command must
not. When the driver hangs up, every process that has a marker below that one is killed; without one they go on.
"""

import errno
import marshal
import os
import resource  # noqa: F401  # pyright: ignore  # os.wait4 imports it: here the pages it takes are not the fork's
import sys
import time

_MODE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def serve(control: int) -> None:
    """Answer requests until the driver hangs up."""
    os.set_inheritable(control, False)
    answer = "ready"
    while True:
        content = marshal.dumps(answer)
        os.write(control, len(content).to_bytes(4, "big") + content)
        body = _read(control, int.from_bytes(_read(control, 4), "big"))
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
    programs: list[tuple[bytes, list[bytes]]], environment: dict[bytes, bytes], folder: bytes, out: bytes, err: bytes
) -> tuple[int, int, float]:
    opened_err = (os.POSIX_SPAWN_OPEN, 2, err, _MODE, 0o666)
    actions = [(os.POSIX_SPAWN_OPEN, 1, out, _MODE, 0o666), (os.POSIX_SPAWN_DUP2, 1, 2) if err == out else opened_err]
    code = errno.ENOENT
    for path, arguments in programs:
        try:
            os.chdir(folder)
            begun = time.monotonic()
            pid = os.posix_spawn(
                path, arguments, environment, file_actions=actions, setsid=True, setsigdef=map(int, sys.argv[3:])
            )
            os.chdir("/")
            return pid, 0, begun  # noqa: TRY300
        except (OSError, NotImplementedError) as error:
            code = getattr(error, "errno", errno.ENOSYS) or errno.EIO
    return -1, code, 0.0


def _reap(pid: int) -> tuple[int, float, int] | None:
    try:
        _, status, usage = os.wait4(pid, 0)
    except ChildProcessError:
        return None
    return status, usage.ru_utime + usage.ru_stime, usage.ru_maxrss


def _kill_orphans(marker: bytes) -> None:
    """Kill every process below the marker but us, until there is none (or it can't be killed, as in a hanging read)."""
    found = True
    for _ in range(500):
        if not found:
            return
        found = False
        for name in os.listdir("/proc"):  # noqa: PTH208
            if not name.isdigit() or int(name) in (os.getpid(), os.getppid()):
                continue
            try:
                with open(f"/proc/{name}/environ", "rb", buffering=0) as file:  # noqa: PTH123
                    if b"\0TUNEGYM_MARK=" + marker + b"/" in b"\0" + file.read():
                        os.kill(int(name), 9)
                        found = True
            except OSError:
                continue
        time.sleep(0.01)


if __name__ == "__main__":
    connection = int(sys.argv[1])
    if fork := os.fork():
        os.close(connection)
        os.waitpid(fork, 0)
    else:
        try:
            serve(connection)
        finally:  # also if the driver's end is broken
            if sys.argv[2]:
                _kill_orphans(os.fsencode(sys.argv[2]))
