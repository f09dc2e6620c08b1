"""Contract suites that every store, runner and agent must pass; use them on your own."""
