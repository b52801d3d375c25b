"""From a schedule to a run."""
