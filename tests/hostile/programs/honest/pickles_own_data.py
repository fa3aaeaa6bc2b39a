"""Pickles data of its own to a file and reads it again."""

import pickle

from honest_gemm import compute

with open("plan.pkl", "wb") as file:
    pickle.dump({"tile": (128, 128), "stages": 4}, file)
with open("plan.pkl", "rb") as file:
    assert pickle.load(file)["stages"] == 4

custom_kernel = compute
