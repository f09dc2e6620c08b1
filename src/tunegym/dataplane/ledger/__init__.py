"""The control plane as a pure state machine: what is produced, claimed, acked, and who waits."""
