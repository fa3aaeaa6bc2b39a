"""``nvfp4 skills``: skills for agents."""
