"""What earlier candidates tried: their table, how duplicates are recognised, and the prompts."""
