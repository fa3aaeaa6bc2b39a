"""Global, shared, local and parameter memory: accesses, checks, and where tensors live."""
