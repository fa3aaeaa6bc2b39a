"""NVFP4 in numpy: codecs, scale-factor layouts, an exact oracle, the judgement of outputs, and inputs worth running.

- Codecs: :mod:`~pytest_nvfp4.numerics.formats`, :mod:`~pytest_nvfp4.numerics.packing`,
  :mod:`~pytest_nvfp4.numerics.quantise`, :mod:`~pytest_nvfp4.numerics.fp16`.
- Layout of scale factors: :mod:`~pytest_nvfp4.numerics.scale_layout`.
- What is right: :mod:`~pytest_nvfp4.numerics.oracle`, :mod:`~pytest_nvfp4.numerics.judge`.
- What to run: :mod:`~pytest_nvfp4.numerics.families`, :mod:`~pytest_nvfp4.selfcheck.metamorphic`.
- How good that is: :mod:`~pytest_nvfp4.numerics.mutants`, :mod:`~pytest_nvfp4.selfcheck.scoring`.
"""
