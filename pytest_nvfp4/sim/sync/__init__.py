"""Synchronisation: mbarriers, named and cluster barriers, fences, warp collectives, launch control, external calls."""
