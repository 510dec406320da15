"""Builds the tables that users get. docs/tables.md describes their columns."""
