"""The command group ``nvfp4 profile``: one module for each subcommand, and the tables that they share."""
