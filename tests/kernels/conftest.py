import pytest

pytest.register_assert_rewrite(
    "tests.kernels.sm90_checks", "tests.kernels.sm90_source", "tests.kernels.sm100_checks", "tests.kernels.cta_map"
)
