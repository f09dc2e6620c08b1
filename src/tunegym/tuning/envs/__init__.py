"""The trial engine and the faces it has."""
