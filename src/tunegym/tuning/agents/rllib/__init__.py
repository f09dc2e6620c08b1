"""Agents that learn with algorithms of RLlib."""
