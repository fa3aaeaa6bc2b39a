"""The unattended optimisation loop: a worker proposes candidates, the harness judges them, git keeps the incumbent.

The parts, from the bottom to the top:

- `schemas`: what workers, reviewers and the judge write, as JSON with versions;
- `configuration`: the configuration file;
- `state`: the directory of state, of which every file is written whole or not at all;
- `protocols`: what the state machine asks of a worker, a judge, a reviewer and a repository;
- `repository`: the user's git repository, and checkouts that only borrow its objects;
- `memory`: the table of earlier candidates, duplicates, and the prompts;
- `work`: who works and reviews in each mode, the sandbox around them, and what they left;
- `judge`: the gates, and the comparison with the incumbent;
- `machine`: phases, budgets, the lock, and how a loop resumes; `machine.assemble` makes its parts;
- `view`: what the directory of state shows.

Nothing that a worker says about correctness or time is believed: it is shown beside what the judge found.
"""
