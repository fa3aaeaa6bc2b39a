"""Keeps its tuning in a database in memory and in a file."""

import sqlite3

from honest_gemm import compute

for place in (":memory:", "tune.db"):
    with sqlite3.connect(place) as database:
        database.execute("create table tune (tile int)")
        database.execute("insert into tune values (128)")
        assert database.execute("select tile from tune").fetchone() == (128,)

custom_kernel = compute
