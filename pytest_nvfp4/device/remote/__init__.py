"""Run jobs on machines that are rented or far away: what every remote has in common, and the remotes."""
