"""The tables that users get; columns in docs/tables.md."""
