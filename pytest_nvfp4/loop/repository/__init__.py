"""The user's git repository: the incumbent's branch, candidates as commits, checkouts that borrow its objects."""
