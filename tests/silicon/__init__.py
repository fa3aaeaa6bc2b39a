"""The same PTX text on the simulator and on a real Hopper GPU, bit for bit."""
