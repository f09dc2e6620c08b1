"""Where the ledger lives: in this process, or in its own process behind a local socket."""
