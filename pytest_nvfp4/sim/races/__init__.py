"""Race detection by happens-before: ``Detector`` is a ``sim.monitor.Monitor`` that orders every access of a launch."""
