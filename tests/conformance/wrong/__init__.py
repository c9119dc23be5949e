"""Small servers, each with one fault: the kit must find it, and nothing else."""
