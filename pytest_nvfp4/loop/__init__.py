"""The unattended optimisation loop: a worker proposes candidates, the harness judges them, git keeps the incumbent.

The parts, from the bottom to the top:

- `schemas`: what workers, reviewers and the judge write, as JSON with versions;
- `config`: the configuration file;
- `state`: the directory of state, of which every file is written whole or not at all;
- `protocols`: what the state machine asks of a worker, a judge, a reviewer and a repository;
- `git`, `checkout`, `evidence`, `repository`: the user's repository, and checkouts that only borrow its objects;
- `tree`, `policy`, `outbox`: what an untrusted process left in its folders, and whether a candidate may have it;
- `confined`, `template`, `output_log`, `usage`: a user's command in the sandbox, its output and its disk space;
- `workplace`, `worker`, `worker_manual`, `reviewer`, `workers`: who works and reviews in each mode;
- `judge`: the gates, and the comparison with the incumbent;
- `machine` and what it imports: phases, budgets, the lock, and how a loop resumes; `assemble` makes its parts.

Nothing that a worker says about correctness or time is believed: it is shown beside what the judge found.
"""
