"""The launcher process: starts commands, and reaps them. Run as a script; imports as little as possible.

Linux carries the peak memory of the process that starts a program over into the program's own account: started by the
driver, a 2 MB command would be reported with the driver's 300 MB. So commands are started by a fork of this small
process, which has neither the pages of Python's start nor those of files that it doesn't use: about 6 MB. A smaller
peak is unknown, unless it was asked for: then ``setsid`` and ``sh``, which have less than 1 MB, start the command in
between, which takes a millisecond.

Messages are marshalled values, framed as by ``multiprocessing.connection``. The launcher first says ``"ready"``. A
tuple (programs, environment, folder, output file, error file, whether a small peak is needed) asks to start a command:
the first of the programs, each a path with its arguments, that can be started. The answer is its pid, or -1, the errno,
or 0, and when it was started (by the monotonic clock). A pid asks to reap a command that has ended; the answer is its
wait status, CPU seconds and peak memory in KB (0 if unknown), or None if it isn't there.

Arguments: the descriptor of the connection, a marker or nothing, and the signals that Python ignores and a command must
not. When the driver hangs up, every process that has a marker below that one is killed; without one they go on.
"""

import errno
import marshal
import os
import resource  # os.wait4 imports it: here the pages it takes are not the fork's
import sys
import time

_MODE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_SMALL = [b"setsid", b"--fork", b"sh", b"-c", b'echo $$ >&9; exec "$0" "$@" 9>&-']
_PR_SET_CHILD_SUBREAPER = 36
_small: set[int] = set()  # pids of commands whose peak memory is their own


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
    programs: list[tuple[bytes, list[bytes]]],
    environment: dict[bytes, bytes],
    folder: bytes,
    out: bytes,
    err: bytes,
    small: bool,
) -> tuple[int, int, float]:
    opened_err = (os.POSIX_SPAWN_OPEN, 2, err, _MODE, 0o666)
    actions = [(os.POSIX_SPAWN_OPEN, 1, out, _MODE, 0o666), (os.POSIX_SPAWN_DUP2, 1, 2) if err == out else opened_err]
    code = errno.ENOENT
    for path, arguments in programs:
        try:
            os.chdir(folder)
            signals = list(map(int, sys.argv[3:]))
            pid, begun = _start_small(path, arguments, environment, actions, signals) if small else (0, 0.0)
            if not pid:
                begun = time.monotonic()
                pid = os.posix_spawn(path, arguments, environment, file_actions=actions, setsid=True, setsigdef=signals)
            os.chdir("/")
            return pid, 0, begun  # noqa: TRY300
        except (OSError, NotImplementedError) as error:
            code = getattr(error, "errno", errno.ENOSYS) or errno.EIO
    return -1, code, 0.0


def _start_small(
    path: bytes, arguments: list[bytes], environment: dict[bytes, bytes], actions: list[tuple], signals: list[int]
) -> tuple[int, float]:
    """Start a program by a process smaller than this one, and adopt it; pid 0 where that isn't possible."""
    import ctypes

    if sys.platform != "linux":
        return 0, 0.0
    reads, writes = os.pipe()
    adopt = ctypes.CDLL(None).prctl
    try:
        adopt(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        said = [*actions, (os.POSIX_SPAWN_DUP2, writes, 9)]
        words = [*_SMALL, path, *arguments[1:]]
        parent = os.posix_spawnp(b"setsid", words, environment, file_actions=said, setsigdef=signals)
        os.close(writes)
        writes = -1
        pid, begun = int(os.read(reads, 20) or 0), time.monotonic()  # nothing if sh doesn't start
        os.waitpid(parent, 0)
    except OSError:  # there is no setsid
        return 0, 0.0
    finally:
        adopt(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        os.close(reads)
        if writes >= 0:
            os.close(writes)
    _small.add(pid)
    return pid, begun


def _reap(pid: int) -> tuple[int, float, int] | None:
    try:
        _, status, usage = os.wait4(pid, 0)
    except ChildProcessError:
        return None
    known = pid in _small or usage.ru_maxrss > resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    _small.discard(pid)
    return status, usage.ru_utime + usage.ru_stime, usage.ru_maxrss if known else 0


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
