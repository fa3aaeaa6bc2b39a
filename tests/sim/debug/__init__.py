"""The debugger."""
