"""How the samples of each recipe come about."""
