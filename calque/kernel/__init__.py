"""From a program to launches: fusion, lowering to loops, memory. See README.md."""
