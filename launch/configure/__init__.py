"""From overrides to validated configurations."""
