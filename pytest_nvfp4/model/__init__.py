"""Modelled times: a recording of what a kernel's launch does, replayed on a model of a device with a clock."""
