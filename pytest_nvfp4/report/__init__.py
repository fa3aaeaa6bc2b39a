"""Reports of checks: for terminals, pull requests, GitHub Actions and browsers."""
