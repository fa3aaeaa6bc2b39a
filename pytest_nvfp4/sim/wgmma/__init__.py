"""Hopper's tensor unit: warpgroup and warp level matrix instructions."""
