"""Tables, intervals, groups, units and notices, which all stages use. Imports nothing from the other packages."""
