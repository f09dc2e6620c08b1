"""Agents that learn a policy with Stable-Baselines3's algorithms."""
