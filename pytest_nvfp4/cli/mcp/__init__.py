"""``nvfp4 mcp``: checks and the simulator for agents, over the Model Context Protocol.

Each tool runs a command of this package in a bounded process of its own; the server itself judges nothing.
"""
