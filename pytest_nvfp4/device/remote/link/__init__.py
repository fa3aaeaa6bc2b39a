"""Connection to an agent on another machine: any command that starts a Python there with its standard streams on ours.

The remote Python needs only the requirements of this package. The package itself is sent along, so that both sides
have the same version. The agent ends with the connection.
"""
