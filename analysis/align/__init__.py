"""Across ranks: which records are one collective, one clock for all, waits apart from transfers."""
