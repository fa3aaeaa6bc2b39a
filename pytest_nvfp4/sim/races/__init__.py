"""Race detection by happens-before: ``detector.Detector`` is a ``sim.monitor.Monitor`` that orders all accesses."""
