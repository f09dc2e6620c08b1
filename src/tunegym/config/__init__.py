"""TOML to model values; pydantic lives here only."""
