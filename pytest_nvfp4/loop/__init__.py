"""The unattended optimisation loop: a worker proposes candidates, the harness judges them, git keeps the incumbent.

The parts, from the bottom to the top:

- `schemas`: what workers, reviewers and the judge write, as JSON with versions;
- `config`: the configuration file;
- `state`: the directory of state, of which every file is written whole or not at all;
- `protocols`: what the state machine asks of a worker, a judge, a reviewer and a repository.

Nothing that a worker says about correctness or time is believed: it is shown beside what the judge found.
"""
