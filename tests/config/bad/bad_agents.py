"""Agents of scenarios that are refused."""

from tunegym.tuning.agents.base import BaseAgent


class OneContext(BaseAgent):
    """Learns, and can't tell contexts apart."""

    def update_policy(self, feedback):
        """Learn nothing in fact."""
