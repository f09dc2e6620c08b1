"""Asynchronous RL: collectors write rollouts into the data plane, and a learner trains on them as they come.

``policy`` is the network, ``weights`` carries it through the plane, ``admission`` says who may start a rollout,
``collector`` makes rollouts, ``lanes`` steps an experiment for collectors, and ``async_ppo`` learns.
"""
