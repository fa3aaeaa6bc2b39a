"""PTX text to instructions, flow and liveness."""
