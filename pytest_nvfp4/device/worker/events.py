"""The sender of a device worker's events."""

from pytest_nvfp4.isolation.event_sender import EventSender as Events

__all__ = ["Events"]
