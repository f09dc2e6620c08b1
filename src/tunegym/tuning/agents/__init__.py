"""Agents: what chooses the next action. One file each over ``base``."""
