"""Searches that leave nothing out: TMEM packings and epilogue layouts, enumerated and ranked."""
