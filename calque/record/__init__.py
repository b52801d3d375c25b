"""Recording operations: the trie, where a thread stands in it, and what a flush makes of it. See README.md."""
