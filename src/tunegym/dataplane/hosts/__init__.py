"""Where the ledger lives: in this process, or in a process of its own behind a local socket."""
