"""How good each setting is: trials in, a frozen answer out. Pure; search, tables and reports all ask here."""
