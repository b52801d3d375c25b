"""What is told to the user: counters, explanations, devices and warnings. See README.md."""
