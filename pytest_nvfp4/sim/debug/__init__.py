"""The debugger of a simulated launch: stops, what a stop shows, and commands."""
