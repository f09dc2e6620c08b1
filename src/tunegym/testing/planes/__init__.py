"""The contract of a data plane, by what it is about; ``tunegym.testing.dataplane`` has it whole."""
