"""App to deploy: ``modal deploy -m pytest_nvfp4.device.remote.modal.app``, for ``--nvfp4-deployed-app``.

A deployed app starts faster (nothing is built or uploaded at the start of a session) and costs nothing while it is
idle. These variables configure it: ``NVFP4_MODAL_GPU`` (``none`` for the simulator), ``_GPU_CAPABILITY``,
``_CONTAINERS``, ``_TIMEOUT``, ``_SINGLE_USE``, ``_CPUS``, ``_MEMORY`` (GiB), ``_PROFILERS`` (1 for nsys and ncu) and
``_IMAGE``. Deploy it again after an update of pytest-nvfp4, torch or the DSL: a session refuses a deployment of other
code.

Modal's command sends Modal the git state of the current folder: the commit, its author and the address of ``origin``
with any password in it. This module keeps it from finding a repository, wherever it is run.
"""

from __future__ import annotations

import os

from pytest_nvfp4.device.remote.modal.build import make_app
from pytest_nvfp4.device.remote.modal.settings import ModalSettings

# `modal deploy` asks git after the import of this module (``get_git_commit_info``, modal 1.5 and 1.6), and sends
# nothing if git finds no repository.
os.environ["GIT_DIR"] = os.devnull

app, runner = make_app(ModalSettings.from_environment())
