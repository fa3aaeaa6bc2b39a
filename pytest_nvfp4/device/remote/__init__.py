"""Remotes: machines outside this one that run jobs, and what all remotes share."""
