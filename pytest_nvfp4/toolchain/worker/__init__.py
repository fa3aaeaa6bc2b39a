"""The process that compiles one kernel on one problem and returns what it saw.

It needs the standard library and whatever the kernel imports, nothing else, so that it also runs in an environment
of its own with another version of the DSL.
"""
