"""Runs a pipeline of a shell, with text on its standard input."""

import subprocess

from honest_gemm import compute

done = subprocess.run("sort | uniq | wc -l", shell=True, input="b\na\nb\n", capture_output=True, text=True, check=True)
assert done.stdout.strip() == "2"

custom_kernel = compute
