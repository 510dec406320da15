"""Findings: what costs time, and what a fix would save."""
