"""The judge: gates that need no GPU, then the decision against the incumbent.

- `processes`, `product`: the own commands of this package as bounded processes; nothing else runs a candidate;
- `answers`, `gates`: what these commands write, as results of gates;
- `gate_run`, `findings`, `examine`: the examination of one commit;
- `same`, `snapshots`: whether two candidates are the same; what layouts are compared with if there are no snapshots;
- `decide`: the verdict by modelled times or a counter, and the feedback for the next worker;
- `place`, `comparison`, `measured`: the verdict by interleaved times on a device;
- `judge`: all of it behind the protocol of the state machine.

A candidate is never imported, and what it says about itself is not read.
"""
