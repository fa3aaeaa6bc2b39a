"""Test configuration of this repository; it is not part of the plugin."""

pytest_plugins = ("pytester",)
