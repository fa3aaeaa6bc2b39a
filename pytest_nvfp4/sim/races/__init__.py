"""Race detection by happens-before: ``detector.Detector`` is the monitor that orders all accesses."""
