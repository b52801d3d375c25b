"""Worker threads, memory, and native code that Python calls."""
