"""Episodes: the policy acts in a leased environment, and its turns go round the ring like any others."""
