"""What is known of Gymnasium's own environments: what follows from their constants, and what these may be.

An environment computes some attributes once, when it is built. Setting the constant alone would change half of the
physics. Nothing can be known of other environments: theirs are set as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

_ONLY_DRAWN = "it is only drawn"
_READ_ONCE = "it was used once, when the environment was built"


@dataclass(frozen=True)
class Known:
    """What is known of a class of environments.

    Attributes:
        derived: attributes that are computed from others: from which, and how.
        bounded: what the bounds of a space were made of, and the side on which a value would leave them.
        idle: attributes that change nothing, and why.
        real: integers by the accident of how they are written; they may be any number.
        words: what a text may be.
    """

    derived: Mapping[str, tuple[tuple[str, ...], Callable[[Any], Any]]] = field(default_factory=dict)
    bounded: Mapping[str, str] = field(default_factory=dict)
    idle: Mapping[str, str] = field(default_factory=dict)
    real: frozenset[str] = frozenset()
    words: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


_SCREEN: dict[str, str] = dict.fromkeys(
    ("screen_width", "screen_height", "screen_dim", "SCREEN_DIM", "isopen"), _ONLY_DRAWN
)

_CARTPOLE = Known(
    derived={
        "total_mass": (("masspole", "masscart"), lambda env: env.masspole + env.masscart),
        "polemass_length": (("masspole", "length"), lambda env: env.masspole * env.length),
    },
    bounded={"x_threshold": "above", "theta_threshold_radians": "above"},
    idle=_SCREEN,
    words={"kinematics_integrator": ("euler", "semi-implicit euler")},
)
_PENDULUM = Known(
    bounded={"max_speed": "above", "max_torque": "above"}, idle=_SCREEN, real=frozenset({"max_speed", "g"})
)
_MOUNTAIN_CAR = Known(
    bounded={"max_speed": "above", "max_position": "above", "min_position": "below"},
    idle=_SCREEN,
    real=frozenset({"goal_velocity"}),
)
_MOUNTAIN_CAR_CONTINUOUS = Known(
    bounded={**_MOUNTAIN_CAR.bounded, "max_action": "above", "min_action": "below"},
    idle=_SCREEN,
    real=frozenset({"goal_velocity"}),
)
_ACROBOT = Known(
    bounded={"MAX_VEL_1": "above", "MAX_VEL_2": "above"},
    idle={**_SCREEN, "LINK_LENGTH_2": _ONLY_DRAWN, "actions_num": _READ_ONCE},
    words={"book_or_nips": ("book", "nips")},
)
_CLIFF_WALKING = Known(idle=dict.fromkeys(("nS", "nA", "start_state_index", "is_slippery"), _READ_ONCE))
_FROZEN_LAKE = Known(idle=dict.fromkeys(("nrow", "ncol"), _READ_ONCE))
_TAXI = Known(idle=dict.fromkeys(("max_row", "max_col"), _READ_ONCE))

LIBRARY: dict[str, Known] = {
    "gymnasium.envs.classic_control.cartpole:CartPoleEnv": _CARTPOLE,
    "gymnasium.envs.classic_control.pendulum:PendulumEnv": _PENDULUM,
    "gymnasium.envs.classic_control.mountain_car:MountainCarEnv": _MOUNTAIN_CAR,
    "gymnasium.envs.classic_control.continuous_mountain_car:Continuous_MountainCarEnv": _MOUNTAIN_CAR_CONTINUOUS,
    "gymnasium.envs.classic_control.acrobot:AcrobotEnv": _ACROBOT,
    "gymnasium.envs.toy_text.cliffwalking:CliffWalkingEnv": _CLIFF_WALKING,
    "gymnasium.envs.toy_text.frozen_lake:FrozenLakeEnv": _FROZEN_LAKE,
    "gymnasium.envs.toy_text.taxi:TaxiEnv": _TAXI,
}
"""By ``module:Class``."""


def known_of(env: Any) -> Known:
    """What is known of an unwrapped environment that has just been built; nothing of one that isn't the library's.

    What a class derived from the library's computes in another way is left to it.
    """
    for base in type(env).__mro__:
        known = LIBRARY.get(f"{base.__module__}:{base.__qualname__}")
        if known is not None:
            holds = {name: rule for name, rule in known.derived.items() if _same(env, name, rule[1])}
            return Known(holds, known.bounded, known.idle, known.real, known.words)
    return Known()


def _same(env: Any, name: str, compute: Callable[[Any], Any]) -> bool:
    try:
        return bool(getattr(env, name) == compute(env))
    except AttributeError:
        return False
