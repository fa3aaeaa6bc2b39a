"""Those who propose and review: a user's commands in the sandbox, people, and what either leaves behind."""
