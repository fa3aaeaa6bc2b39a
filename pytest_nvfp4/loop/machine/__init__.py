"""The state machine: phases, budgets, limits, the lock, and how a loop ends and goes on."""
