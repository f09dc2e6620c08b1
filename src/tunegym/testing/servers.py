"""The contract of a ``GymServer``: check your own before an experiment does.

::

    check_gym_server(MyServer, arguments={"workers": 4}, env_params={"load": [10, 100]})

or, for pytest::

    class TestMine(GymServerSuite):
        server = MyServer
        arguments = {"workers": 4}
        env_params = {"load": [10, 100]}
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

from tunegym.testing import server_checks as checks
from tunegym.testing.server_checks import Examination


class GymServerError(AssertionError):
    """A server breaks the contract.

    Attributes:
        problems: one sentence for each problem, with what to do.
    """

    def __init__(self, name: str, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        count = "1 problem" if len(self.problems) == 1 else f"{len(self.problems)} problems"
        super().__init__("\n".join([f"{name} is no GymServer yet, {count}:", *(f"- {one}" for one in self.problems)]))


class GymServerWarning(UserWarning):
    """The server works, but something may not be meant."""


def check_gym_server(
    build: Callable[..., Any],
    *,
    arguments: Mapping[str, Any] | None = None,
    env_params: Mapping[str, Any] | None = None,
    steps: int = 200,
    seed: int = 0,
) -> None:
    """Build servers, drive them as an experiment does, and report everything that is wrong.

    Several servers are built, two of them side by side, and each is closed.

    Args:
        build: the class, or a function that makes a server.
        arguments: its arguments, by name.
        env_params: a value for each name; of a list, the first and the last value should make a difference.
        steps: length of the longest walk.
        seed: of the resets and of the actions, which are drawn from ``action_space``.

    Raises:
        GymServerError: (an ``AssertionError``) with every problem.

    Warns:
        GymServerWarning: something works, but may not be meant.
    """
    examined = Examination(build, arguments or {}, env_params or {}, steps, seed)
    examined.examine(*checks.CHECKS)
    _conclude(examined)


def _conclude(examined: Examination) -> None:
    name = getattr(examined.make, "__name__", None) or type(examined.make).__name__
    for doubt in examined.doubts.values():
        warnings.warn(f"{name}: {doubt}", GymServerWarning, stacklevel=3)
    if examined.problems:
        raise GymServerError(name, examined.problems.values())


def _test_of(*which: Callable[[Examination], None]) -> Callable[[GymServerSuite], None]:
    return lambda self: self.examine(*which)


class GymServerSuite:
    """The contract of a ``GymServer``, as tests.

    Attributes:
        server: the class, or a function that makes a server.
        arguments: its arguments, by name.
        env_params: as in ``check_gym_server``.
        steps: length of the longest walk.
        seed: of the resets and the actions.
    """

    server: ClassVar[Callable[..., Any]]
    arguments: ClassVar[Mapping[str, Any]] = {}
    env_params: ClassVar[Mapping[str, Any]] = {}
    steps: ClassVar[int] = 200
    seed: ClassVar[int] = 0

    def examine(self, *which: Callable[[Examination], None]) -> None:
        """Run some of the checks."""
        examined = Examination(type(self).server, self.arguments, self.env_params, self.steps, self.seed)
        examined.examine(*which)
        _conclude(examined)

    test_is_complete = _test_of()
    test_walks = _test_of(checks.walks)
    test_takes_corners = _test_of(checks.takes_corners)
    test_resets_anywhere = _test_of(checks.resets_anywhere)
    test_keeps_its_seed = _test_of(checks.keeps_its_seed)
    test_takes_env_params = _test_of(checks.takes_env_params)
    test_closes = _test_of(checks.closes)
    test_has_company = _test_of(checks.has_company)
