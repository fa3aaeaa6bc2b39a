"""The app to deploy: ``modal deploy -m pytest_nvfp4.device.remote.modal.app``, then ``--nvfp4-deployed-app``.

A deployed app starts faster (nothing is built or uploaded at the start of a session) and costs nothing while it is
idle. ``NVFP4_MODAL_GPU``, ``_CONTAINERS``, ``_TIMEOUT``, ``_SINGLE_USE`` and ``_IMAGE`` say what it is made of. Deploy
it again after an update of pytest-nvfp4, torch or the DSL: a session refuses a deployment of other versions.

Modal's command tells Modal what git says of the folder in which it is run: the commit, its author and the address of
``origin``, with a password that is in it. Run it outside of a repository to tell nothing.
"""

from __future__ import annotations

from pytest_nvfp4.device.remote.modal.build import make_app
from pytest_nvfp4.device.remote.modal.settings import ModalSettings

app, runner = make_app(ModalSettings.from_environment())
