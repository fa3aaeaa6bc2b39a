"""The judge: gates that need no GPU, then the decision against the incumbent.

- `processes`: the product's own commands as bounded processes, which is all that touches a candidate;
- `answers`: what these commands write;
- `gates`: their answers as results of gates;
- `same`: whether two candidates are the same;
- `snapshots`: what layouts and facts are compared with where the repository has no snapshots;
- `examine`: the examination of one commit;
- `decide`: the verdict by modelled times or a counter, and what is said about it;
- `measured`, `comparison`: the verdict by interleaved times on a device.

A candidate is never imported, and what it says about itself is not read.
"""
