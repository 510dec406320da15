"""Where each step's time went, which steps count, what the loader costs, what the node can do."""
