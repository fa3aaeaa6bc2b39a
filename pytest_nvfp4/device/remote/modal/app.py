"""The app to deploy: ``modal deploy -m pytest_nvfp4.device.remote.modal.app``, then ``--nvfp4-deployed-app``.

A deployed app starts faster (nothing is built or uploaded at the start of a session) and costs nothing while it is
idle. ``NVFP4_MODAL_GPU``, ``_CONTAINERS``, ``_TIMEOUT``, ``_SINGLE_USE`` and ``_IMAGE`` say what it is made of. Deploy
it again after an update of pytest-nvfp4, torch or the DSL: a session refuses a deployment of other versions.
"""

from __future__ import annotations

from pytest_nvfp4.device.remote.modal.build import make_app
from pytest_nvfp4.device.remote.modal.settings import ModalSettings

app, runner = make_app(ModalSettings.from_environment())
