"""Adapters: one TOML file says how one agent program is started and read."""
