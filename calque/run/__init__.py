"""Recording, and running what was recorded: the trace trie, plans, queues, copies, replays. See docs/architecture.md."""
