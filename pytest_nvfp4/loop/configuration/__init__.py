"""The configuration: its model, how it is read and written, and the check of files by their kind."""
