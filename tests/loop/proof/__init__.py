"""A loop over forty candidates that no agent wrote."""
