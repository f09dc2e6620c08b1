"""The ledger: the control plane as a pure state machine."""
