"""Overrides in, validated configurations out."""
