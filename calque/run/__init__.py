"""Running programs: buffers, queues, plans, and the ways in which a program starts. See README.md."""
