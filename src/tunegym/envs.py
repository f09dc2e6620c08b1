"""Registers the environment with Gymnasium: import this module, or name it in the id.

    env = gymnasium.make("tunegym.envs:tunegym/Tune-v0", scenario="scenario.toml")

``import tunegym`` does so by itself where Gymnasium is already loaded. It doesn't load Gymnasium, which takes long.
"""

from __future__ import annotations

import gymnasium

from tunegym.tuning.ports import ENV_ID

if ENV_ID not in gymnasium.registry:
    gymnasium.register(
        id=ENV_ID, entry_point="tunegym:make", vector_entry_point="tunegym:make_vec", nondeterministic=True
    )
