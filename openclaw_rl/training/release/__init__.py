"""From a trained version to a served one: the eval gate, the regression monitor, and their records."""
