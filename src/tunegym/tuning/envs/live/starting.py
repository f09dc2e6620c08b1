"""Before the first step: servers that can do what the experiment asks of them, all of one kind."""

from __future__ import annotations

from collections.abc import Sequence

from tunegym.core.errors import ServerLostError
from tunegym.tuning.model.scenario import Experiment
from tunegym.tuning.servers.hosting import Host, ServerFailure
from tunegym.tuning.spaces import SpaceError, describe, differences


def start_all(hosts: Sequence[Host], experiment: Experiment) -> None:
    """Start every server. Raises ``ServerLostError`` if one can't be, or is unfit; it says why."""
    for host in hosts:
        try:
            host.start()
            lines = _unfit(host, hosts[0], experiment)
        except (ServerFailure, SpaceError) as failure:
            raise ServerLostError(
                f"{experiment.name}: the server can't be started: {failure}", hint="mend it, then resume"
            ) from failure
        if lines:
            raise ServerLostError(f"{experiment.name}: {'; '.join(lines)}", hint="mend the server")


def _unfit(host: Host, first: Host, experiment: Experiment) -> list[str]:
    if experiment.env_params and not host.applies_env_params:
        return ["there are env_params, and the server has no apply_env_params()"]
    describe(host.action_space)
    describe(host.observation_space)
    return [
        *differences(first.action_space, host.action_space, "action_space"),
        *differences(first.observation_space, host.observation_space, "observation_space"),
    ]
