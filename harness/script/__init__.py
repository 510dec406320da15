"""Runs a user's script as the job."""
