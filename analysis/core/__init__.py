"""Tables, intervals, groups, units and notices: what every stage uses. Imports nothing above it."""
