"""Training jobs that the command line offers."""
