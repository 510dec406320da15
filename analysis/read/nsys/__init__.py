"""Reads Nsight Systems' reports and their SQLite exports."""
