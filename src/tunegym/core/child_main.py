"""The first lines of every Python child process: run as a script by ``core.child``. Imports little.

Arguments: ``module:function`` to call, the descriptor of the lifeline (-1 for none), whether to detach, the inherited
descriptors, and ``sys.path``; then the function's own arguments, which are texts.
"""

import contextlib
import fcntl
import importlib
import os
import signal
import sys

_F_SETSIG = 10


def main(target: str, lifeline: str, detach: str, fds: str, path: str, *arguments: str) -> None:
    """Set up the process, and call the function."""
    sys.path[:] = path.split(os.pathsep)
    for fd in fds.split(","):
        if fd:
            os.set_inheritable(int(fd), False)  # for us, not for what we start
    if detach == "1" and os.fork():
        os._exit(0)
    if lifeline != "-1":
        end_with(int(lifeline))
    module, _, name = target.partition(":")
    getattr(importlib.import_module(module), name)(*arguments)


def end_with(lifeline: int) -> None:
    """Have this process group killed when the other end of the pipe closes, as it does when the driver dies.

    Linux does that by itself, also when this process is busy in code that never lets go of the interpreter; elsewhere a
    thread waits for it.
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


if __name__ == "__main__":
    main(*sys.argv[1:])
