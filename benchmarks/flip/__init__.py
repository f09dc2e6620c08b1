"""A task whose best settings flip with the context, and what agents learn on it."""
