"""Addresses of functions: from this process, from the disk, or from the compiler."""
